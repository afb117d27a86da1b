#!/usr/bin/env bash
# Brings up a Kubernetes cluster of two nodes on this machine, with the agent of
# this tree as their runtime, and runs the checks. All of it has namespaces and
# cgroups of its own.
#
# The programs are built from Go modules: Kubernetes, etcd, CoreDNS and agent-sandbox. The first
# time this takes many minutes and gigabytes of Go's build cache.
#
# Variables: E2E_TEST (Kubernetes' e2e.test, which is run instead of the checks, or
# "build" to build it), FOCUS and SKIP (regular expressions of its specs), CHECKS (a
# regular expression of GROUP/NAME), KUBE_APISERVER (a kube-apiserver, which then is
# not built), WORKERS (how many specs run side by side, 4), CACHE (.cache/e2e-cluster:
# the programs), LONGSHORE_PROXY_MODE (nftables; or iptables), LONGSHORE_E2E_LOGS
# (a directory for the logs of a run that failed).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-cluster skipped: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip 'needs root'
for p in ip nft iptables nsenter unshare; do command -v $p >/dev/null || skip "no $p (hack/deps.sh test)"; done
[ -x /bin/busybox ] || skip 'no busybox-static (hack/deps.sh test)'
cache=${CACHE:-$top/.cache/e2e-cluster}
mkdir -p "$cache"
# The tree's own go.mod may have moved on: these follow it.
export CGO_ENABLED=0 GOFLAGS=-mod=mod

# build DIRECTORY PACKAGE... builds a module's programs, one after the other: each
# takes gigabytes of memory.
build() {
  local dir=$1 p
  shift
  cd "$dir"
  go mod download 2>"$cache/download.log" || skip "modules cannot be fetched: $(tail -n 1 "$cache/download.log")"
  for p; do
    echo "building $(basename "$(go list "$p")")"
    go build -p 2 -trimpath -ldflags='-s -w' -o "$cache/" "$p" || skip "$p of $dir cannot be built"
  done
}

servers='./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kube-proxy'
if [ -n "${KUBE_APISERVER:-}" ]; then
  KUBE_APISERVER=$(realpath "$KUBE_APISERVER")
  [ -x "$KUBE_APISERVER" ] || skip "KUBE_APISERVER=$KUBE_APISERVER is no program"
  export KUBE_APISERVER
else
  servers="./cmd/kube-apiserver $servers"
fi
# shellcheck disable=SC2086 # several packages
build "$here" ./cmd/etcd $servers ./cmd/peer k8s.io/kubernetes/cmd/kubeadm
build "$here/../kubelet" ./cmd/kubelet ./cmd/subject
build "$here/coredns" .
# The controller of agent-sandbox and the definitions of its kinds. Without them only their checks are skipped.
sandboxes() {
  cd "$here/agentsandbox" &&
    go build -p 2 -trimpath -ldflags='-s -w' -o "$cache/" sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller &&
    rm -rf "$cache/agent-sandbox-crds" &&
    cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/agent-sandbox)/k8s/crds" "$cache/agent-sandbox-crds"
}
echo 'building agent-sandbox-controller'
sandboxes || {
  echo 'agent-sandbox-controller cannot be built: its checks are skipped'
  rm -f "$cache/agent-sandbox-controller"
}
# Programs of pods with granted rights only.
cd "$top"
GOFLAGS='' go build -trimpath -ldflags='-s -w' -o "$cache/" ./test/node/testdata/granted ./contrib/grants/greeter || skip 'the granted programs cannot be built'
GOFLAGS='' GOOS=wasip1 GOARCH=wasm go build -trimpath -ldflags='-s -w' -o "$cache/wasip1.wasm" ./test/node/testdata/wasip1 || skip 'the module cannot be built'
cd "$here"
export LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$top/bin LONGSHORE_CLUSTER_PROGRAMS=$cache LONGSHORE_CLUSTER_CHECKS=${CHECKS:-}
export LONGSHORE_TEST_PATIENCE=${LONGSHORE_TEST_PATIENCE:-4}
tests='TestChecks|TestCluster|TestKubeadm'
if [ -n "${E2E_TEST:-}" ]; then
  tests=TestSuite
  "$top/hack/deps.sh" suite || skip 'the programs of the images of the suite are not there'
  # By a copy of go.mod, because the build adds all imports of the suite.
  mod=$cache/suite.mod
  cp go.mod "$mod"
  cp go.sum "$cache/suite.sum"
  for p in k8s.io/kubernetes/test/images/agnhost k8s.io/kubernetes/test/images/nonewprivs k8s.io/kubernetes/cmd/kubectl github.com/onsi/ginkgo/v2/ginkgo; do
    echo "building ${p##*/}"
    go build -modfile="$mod" -p 2 -trimpath -ldflags='-s -w' -o "$cache/" "$p" || skip "$p cannot be built"
  done
  if [ "$E2E_TEST" = build ]; then
    E2E_TEST=$cache/e2e.test
    echo 'building e2e.test'
    go test -modfile="$mod" -p 2 -trimpath -ldflags='-s -w' -c -o "$E2E_TEST" k8s.io/kubernetes/test/e2e || skip 'e2e.test cannot be built'
  fi
  export LONGSHORE_E2E_TEST=$E2E_TEST LONGSHORE_E2E_WORKERS=${WORKERS:-4} LONGSHORE_E2E_FOCUS=${FOCUS:-} LONGSHORE_E2E_SKIP=${SKIP:-}
fi
go test -trimpath -count=1 -v -timeout 600m -run "^($tests)\$" .
