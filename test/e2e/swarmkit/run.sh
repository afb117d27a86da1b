#!/usr/bin/env bash
# Runs moby/swarmkit's own manager, built from its Go module, with the agent of this
# tree as its worker. Each test has mount, network and pid namespaces and cgroups of
# its own.
#
# Variables: RUN (a regular expression of test names).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-swarmkit skipped: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip 'needs root'
command -v ip >/dev/null || skip 'no ip (hack/deps.sh test)'
[ -x /bin/busybox ] || skip 'no busybox-static (hack/deps.sh test)'
cd "$here"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The tree's own go.mod may have moved on: this one follows it.
export CGO_ENABLED=0 GOFLAGS=-mod=mod
go mod download 2>"$log" || skip "swarmkit's modules cannot be fetched: $(tail -n 1 "$log")"
export LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$top/bin LONGSHORE_TEST_PATIENCE=${LONGSHORE_TEST_PATIENCE:-4}
go vet .
go test -p 1 -parallel 4 -count=1 -v -timeout 30m ${RUN:+-run "$RUN"} .
