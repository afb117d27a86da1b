#!/usr/bin/env bash
# Drives the longshore-guest of this tree by Kata's own shim, under Debian's containerd.
# Each test has mount, network and pid namespaces and cgroups of its own.
#
# Variables: KATA_SHIM (path of containerd-shim-kata-v2), CONTAINERD (path of a containerd
# with ctr beside it; the default is Debian's, unpacked), RUN (a regular expression of test
# names), LONGSHORE_KATA_RECORD (a directory for the recorded calls).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-kata skipped: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip 'needs root'
[ -n "${KATA_SHIM:-}" ] || skip "KATA_SHIM is not set: test/e2e/kata/README.md says how to build Kata's shim"
[ -x "$KATA_SHIM" ] || skip "there is no program $KATA_SHIM"
[ -x /bin/busybox ] || skip 'no busybox-static (hack/deps.sh test)'
if [ -z "${CONTAINERD:-}" ]; then
  "$top/hack/dockerd.sh" "$top/.cache/docker" || skip "Debian's containerd cannot be had"
  CONTAINERD=$top/.cache/docker/usr/bin/containerd
fi
cd "$top"
export KATA_SHIM CONTAINERD CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$top/bin
go test -p 1 -count=1 -v -timeout 15m ${RUN:+-run "$RUN"} ./test/e2e/kata
