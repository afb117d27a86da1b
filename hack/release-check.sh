#!/usr/bin/env bash
# Builds the release in two clones of this commit, in different directories and with different surroundings and
# caches, and compares every file. Then checks what a release promises: sums, signatures, versions in the
# programs, bills of materials, lintian, and an installation on a bare Debian (hack/install-check.sh).
#
# VERSION  the version to build (0.0.1)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
version=${VERSION:-0.0.1}
commit=$(git rev-parse HEAD)
mkdir -p .cache
work=$(mktemp -d "$PWD/.cache/release-check.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
openssl ecparam -name prime256v1 -genkey -noout -out "$work/key" 2>/dev/null
openssl ec -in "$work/key" -pubout -out "$work/key.pub" 2>/dev/null

build() { # directory of the clone, directory of the release, environment…
  local clone=$1 out=$2
  shift 2
  git clone -q . "$clone"
  git -C "$clone" checkout -q "$commit"
  (cd "$clone" && env VERSION="$version" OUT="$out" KEY="$work/key" "$@" hack/release.sh)
}
build "$work/one" "$work/a"
# The compiler's results of the first build are not those of the second.
mkdir "$work/tmp"
(umask 077 && build "$work/elsewhere/deeper/two" "$work/b" GOCACHE="$work/gocache" GOFLAGS=-mod=mod TZ=Asia/Tokyo LC_ALL=C.UTF-8 TMPDIR="$work/tmp" GOAMD64=v3 SOURCE_DATE_EPOCH=)
chmod -R u+w "$work/gocache"
rm -rf "$work/gocache" "$work/one" "$work/elsewhere"
diff -r --exclude='*.sig' "$work/a" "$work/b" || { echo 'release-check: two builds of one commit differ' >&2; exit 1; }
echo "two builds are equal: $(find "$work/a" -type f ! -name '*.sig' | wc -l) files, $(du -sh "$work/a" | cut -f1)"
hack/release-verify.sh "$work/a" "$version" "$work/key.pub"
rm -rf "$work/b"
hack/install-check.sh "$work/a" "$work/key.pub"
cat "$work/a/SHA256SUMS"
