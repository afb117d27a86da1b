#!/bin/bash
# The guest has no Go toolchain: where a test builds a program of the tree, it
# gets the one that was built on the host (go build … -o FILE … PACKAGE).
# It has no cache either (go env).
set -euo pipefail
[ "${1:-}" != env ] || exit 0
to=
while [ $# -gt 1 ]; do
  [ "$1" = -o ] && to=$2
  shift
done
exec cp "/longshore/bin/${1##*/}" "${to:?go in the guest: only go build -o FILE PACKAGE}"
