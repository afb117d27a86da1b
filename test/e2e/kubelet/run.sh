#!/usr/bin/env bash
# Runs the real kubelet, without an API server, on the agent of this tree, and
# tests its static pods. Each test has mount, network and pid namespaces
# and cgroups of its own.
#
# The kubelet is built from the Go module k8s.io/kubernetes: the first time this
# takes many minutes and gigabytes of Go's build cache.
#
# Variables: RUN (a regular expression of test names), CASES (one of the cases of TestStaticPods),
# KILLS (how long the agent is killed under thirty pods: 5m), CACHE (.cache/e2e-kubelet: the programs).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-kubelet skipped: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip 'needs root'
for p in ip iptables; do command -v $p >/dev/null || skip "no $p (hack/deps.sh test)"; done
[ -x /bin/busybox ] || skip 'no busybox-static (hack/deps.sh test)'
cache=${CACHE:-$top/.cache/e2e-kubelet}
mkdir -p "$cache"
cd "$here"
# The tree's own go.mod may have moved on: this one follows it.
export CGO_ENABLED=0 GOFLAGS=-mod=mod
go mod download 2>"$cache/download.log" || skip "the kubelet's modules cannot be fetched: $(tail -n 1 "$cache/download.log")"
echo 'building the kubelet'
go build -trimpath -ldflags='-s -w' -o "$cache/" ./cmd/...
export LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$top/bin LONGSHORE_KUBELET=$cache/kubelet LONGSHORE_SUBJECT=$cache/subject
export LONGSHORE_TEST_PATIENCE=${LONGSHORE_TEST_PATIENCE:-4} LONGSHORE_E2E_KILLS=${KILLS:-5m} LONGSHORE_KUBELET_CASES=${CASES:-}
go test -trimpath -count=1 -v -timeout 60m ${RUN:+-run "$RUN"} .
