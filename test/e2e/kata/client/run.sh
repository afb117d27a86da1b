#!/usr/bin/env bash
# Drives the longshore-guest of this tree by the agent client of Kata's Go runtime, over
# every call. The client is no module of its own and on no module proxy: it is built from
# Kata's sources, by a go.mod that lasts as long as the run.
#
# Variables: KATA_SOURCE (a checkout of kata-containers), RUN (a regular expression of test
# names).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../../.." && pwd)

skip() { echo "e2e-kata-client skipped: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip 'needs root'
[ -n "${KATA_SOURCE:-}" ] || skip 'KATA_SOURCE is not set: a checkout of https://github.com/kata-containers/kata-containers'
[ -f "$KATA_SOURCE/src/runtime/go.mod" ] || skip "there is no Go runtime of Kata's in $KATA_SOURCE"
[ -x /bin/busybox ] || skip 'no busybox-static (hack/deps.sh test)'
command -v ip >/dev/null || skip 'no ip (hack/deps.sh test)'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
KATA_SOURCE=$(realpath "$KATA_SOURCE")
export KATA_SOURCE GOFLAGS="-modfile=$work/go.mod -mod=mod" CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$top/bin
kata=github.com/kata-containers/kata-containers/src/runtime
cp "$here/go.mod" "$work/go.mod"
GOFLAGS='' go mod edit -require=github.com/longshore/longshore@v0.0.0 -replace="github.com/longshore/longshore=$top" \
  -require=$kata@v0.0.0 -replace="$kata=$KATA_SOURCE/src/runtime" "$work/go.mod"
sort -u "$top/go.sum" "$KATA_SOURCE/src/runtime/go.sum" >"$work/go.sum"
cd "$here"
go vet .
go test -p 1 -count="${COUNT:-1}" -v -timeout 10m ${RUN:+-run "$RUN"} .
