#!/usr/bin/env bash
# Builds the release in two clones of this commit, in different directories and with different surroundings and
# caches, and compares every file. The first has keys with passwords, of cosign's form and of gpg, the second one of
# openssl's. Then checks what a release promises: sums, signatures, versions in the programs, bills of
# materials, lintian, and an installation on a bare Debian (hack/install-check.sh).
#
# VERSION  the version to build (0.0.1)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
version=${VERSION:-0.0.1}
commit=$(git rev-parse HEAD)
mkdir -p .cache
work=$(mktemp -d "$PWD/.cache/release-check.XXXXXX")
export GNUPGHOME=$work/gnupg COSIGN_PASSWORD='a password' GPG_PASSWORD='another one'
trap 'gpgconf --kill all || true; chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --pinentry-mode loopback --passphrase "$GPG_PASSWORD" --quick-generate-key 'Longshore release-check' ed25519 sign never 2>/dev/null
gpgconf --kill gpg-agent # it knows the password
CGO_ENABLED=0 go -C tools/release run . key "$work/cosign.key" "$work/cosign.pub"
openssl ecparam -name prime256v1 -genkey -noout -out "$work/key" 2>/dev/null
openssl ec -in "$work/key" -pubout -out "$work/key.pub" 2>/dev/null

build() { # directory of the clone, directory of the release, environment…
  local clone=$1 out=$2
  shift 2
  git clone -q . "$clone"
  git -C "$clone" checkout -q "$commit"
  (cd "$clone" && env VERSION="$version" OUT="$out" "$@" hack/release.sh)
}
# A wrong password fails before anything is built.
for wrong in COSIGN_PASSWORD GPG_PASSWORD; do
  ! env "$wrong=wrong" VERSION="$version" OUT="$work/none" KEY="$work/cosign.key" GPG_KEY=Longshore timeout 300 hack/release.sh >"$work/log" 2>&1 || { echo "release-check: a release with a wrong $wrong" >&2; exit 1; }
  grep -q -e COSIGN_PASSWORD -e 'cannot sign' "$work/log" || { cat "$work/log" >&2; exit 1; }
done
[ ! -e "$work/none" ] || { echo 'release-check: a release that failed has left files' >&2; exit 1; }
start=$SECONDS
build "$work/one" "$work/a" KEY="$work/cosign.key" GPG_KEY=Longshore
# The compiler's results of the first build are not those of the second.
mkdir "$work/tmp"
(umask 077 && build "$work/elsewhere/deeper/two" "$work/b" GOCACHE="$work/gocache" GOFLAGS=-mod=mod TZ=Asia/Tokyo LC_ALL=C.UTF-8 TMPDIR="$work/tmp" GOAMD64=v3 SOURCE_DATE_EPOCH= KEY="$work/key")
chmod -R u+w "$work/gocache"
rm -rf "$work/gocache" "$work/one" "$work/elsewhere"
# Only the first has the signature and the key of the apt repository.
diff -r --exclude='*.sig' --exclude=InRelease --exclude=Release.gpg --exclude=longshore.gpg "$work/a" "$work/b" || { echo 'release-check: two builds of one commit differ' >&2; exit 1; }
echo "two builds in $((SECONDS - start)) s are equal: $(find "$work/a" -type f ! -name '*.sig' | wc -l) files, $(du -sh "$work/a" | cut -f1)"
hack/release-verify.sh "$work/a" "$version" "$work/cosign.pub"
for sig in "$work/b"/*.sig; do
  base64 -d "$sig" >"$work/sig"
  openssl dgst -sha256 -verify "$work/key.pub" -signature "$work/sig" "${sig%.sig}" >/dev/null || { echo "release-check: ${sig##*/} is wrong" >&2; exit 1; }
done
rm -rf "$work/b"
hack/install-check.sh "$work/a" "$work/cosign.pub"
cat "$work/a/SHA256SUMS"
