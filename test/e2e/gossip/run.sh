#!/usr/bin/env bash
# Runs members of our gossip beside members by other versions of Docker's networkdb, which are
# built from their Go modules. Most are processes at addresses of loopback; only the test that cuts
# one off needs root, in namespaces of its own.
#
# Variables: RUN (a regular expression of test names).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-gossip skipped: $*"; exit 0; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export CGO_ENABLED=0
peers=
for of in docker28 mobynext; do
  # The tree's own go.mod may have moved on: this one follows it.
  (cd "$top/tools/gossip/$of" && GOFLAGS=-mod=mod go mod download) 2>"$log" || skip "the modules of $of cannot be fetched: $(tail -n 1 "$log")"
  (cd "$top/tools/gossip/$of" && GOFLAGS="${GOFLAGS:-} -mod=mod" && export GOFLAGS && go vet . && go build -o "$top/bin/test/gossip-$of" .)
  peers+="$of=$top/bin/test/gossip-$of,"
done
cd "$top"
[ "$(id -u)" != 0 ] || export LONGSHORE_ROOT_TESTS=1
LONGSHORE_GOSSIP_PEERS=$peers LONGSHORE_TEST_PATIENCE=${LONGSHORE_TEST_PATIENCE:-4} \
  go test -count=1 -parallel 12 -v -timeout 20m ${RUN:+-run "$RUN"} ./test/e2e/gossip
