#!/usr/bin/env bash
# Runs OCI's runtime validation suite with longshore-oci and with runc, each in
# mount, network and pid namespaces of its own, and compares: it fails when a
# case that runc passes does not pass here, unless known.txt says why.
#
# RUNTIME_TOOLS names a checkout of https://github.com/opencontainers/runtime-tools;
# its programs are built there, where they are missing.
#
# Other variables: PROGRAMS (names below validation/: all), OUT (a directory for
# the outputs of both: a temporary one), RUNC (runc).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-oci skipped: $*"; exit 0; }

if [ "${1:-}" = inside ]; then
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /run
  ip link set lo up
  cd "$RUNTIME_TOOLS"
  for name in $PROGRAMS; do
    status=0
    RUNTIME=$2 timeout 120 "validation/$name/$name.t" >"$3/$name.tap" 2>"$3/$name.err" || status=$?
    echo "status $status" >>"$3/$name.tap"
  done
  exit 0
fi

[ -n "${RUNTIME_TOOLS:-}" ] || skip 'RUNTIME_TOOLS does not name a checkout of opencontainers/runtime-tools'
RUNTIME_TOOLS=$(realpath "$RUNTIME_TOOLS")
[ -d "$RUNTIME_TOOLS/validation/util" ] || skip "$RUNTIME_TOOLS has no validation/"
[ "$(id -u)" = 0 ] || skip 'needs root'
RUNC=${RUNC:-runc}
for p in "$RUNC" unshare jq; do command -v "$p" >/dev/null || skip "no $p (hack/deps.sh test)"; done

cd "$RUNTIME_TOOLS"
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$(for f in validation/*/*.go; do n=$(basename "$f" .go); [ "$(basename "$(dirname "$f")")" != "$n" ] || echo "$n"; done)
fi
[ -x runtimetest ] || CGO_ENABLED=0 GOFLAGS=-mod=vendor go build -o runtimetest ./cmd/runtimetest
for name in $PROGRAMS; do
  [ -x "validation/$name/$name.t" ] || CGO_ENABLED=0 GOFLAGS=-mod=vendor go build -o "validation/$name/$name.t" "./validation/$name"
done

out=${OUT:-$(mktemp -d /tmp/e2e-oci-XXXXXX)}
mkdir -p "$out/runc" "$out/longshore"
export RUNTIME_TOOLS PROGRAMS
for pair in "runc $RUNC" "longshore $top/bin/longshore-oci"; do
  read -r name runtime <<<"$pair"
  start=$SECONDS
  unshare -mnpf --kill-child --propagation private "$here/run.sh" inside "$runtime" "$out/$name"
  echo "$name: $((SECONDS - start)) s"
done
cd "$top"
CGO_ENABLED=0 go run ./test/e2e/oci/compare "$out/runc" "$out/longshore" "$here/known.txt"
[ -n "${OUT:-}" ] || rm -rf "$out"
