#!/usr/bin/env bash
# Builds a release into a directory: for amd64 and arm64 a tarball, Debian packages and a bill of materials
# (CycloneDX), then SHA256SUMS, and an apt repository. The same commit, version and Go toolchain make the same
# bytes, whatever directory the checkout is in. The directory appears when all of it is there.
#
# OUT         the directory (dist): missing, empty, or an earlier release
# VERSION     by default made of the last tag and the commit
# ARCHES      other architectures than "amd64 arm64"
# MAINTAINER  the packages' maintainer, Name <mail@address>
# KEY         a private key of ECDSA P-256 in PEM form, from openssl or from cosign, whose password is then
#             COSIGN_PASSWORD: FILE.sig beside each file and SHA256SUMS are signatures for cosign verify-blob --key
# GPG_KEY     a key of gpg, which signs the apt repository; apt/longshore.gpg is then its public key. gpg asks for its
#             password, unless that is in GPG_PASSWORD
set -euo pipefail
out=$(realpath -m "${OUT:-dist}")
[ -z "${KEY:-}" ] || KEY=$(realpath "$KEY")
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
fail() {
  echo "release.sh: $*" >&2
  exit 1
}
for program in dpkg-deb dpkg-scanpackages apt-ftparchive; do
  command -v "$program" >/dev/null || fail "no $program: hack/deps.sh release installs it"
done
[ -z "${KEY:-}" ] || [ -r "$KEY" ] || fail "the key $KEY cannot be read"
[ ! -e "$out" ] || [ -e "$out/SHA256SUMS" ] || [ -z "$(ls -A "$out")" ] || fail "$out has other files than a release: name another directory in OUT"
arches=${ARCHES:-amd64 arm64}
version=$(hack/version.sh)
# Debian's rule for a version without a revision.
[[ $version =~ ^[0-9][A-Za-z0-9.+~]*$ ]] || fail "the version $version does not begin with a digit, or has other characters than letters, digits, dots, + and ~"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Nothing of the caller's may change what the compiler makes.
export SOURCE_DATE_EPOCH VERSION=$version LC_ALL=C TZ=UTC GOTOOLCHAIN=local GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT='' GOFIPS140=off GOFLAGS=-buildvcs=false
umask 022

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/.release.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/new" "$work/bin"
CGO_ENABLED=0 go -C tools/release build -trimpath -o "$work/release" .
native=$(go env GOHOSTARCH)
# A key that does not sign is found before the programs are built.
gpg_sign() { # option of gpg, file, its signature
  local password=()
  [ -z "${GPG_PASSWORD:-}" ] || password=(--pinentry-mode loopback --passphrase-fd 3)
  gpg --batch --quiet --yes "${password[@]}" --local-user "$GPG_KEY" --armor "$1" -o "$3" "$2" 3<<<"${GPG_PASSWORD:-}"
}
: >"$work/try"
[ -z "${KEY:-}" ] || "$work/release" sign "$KEY" "$work/try"
[ -z "${GPG_KEY:-}" ] || gpg_sign --detach-sign "$work/try" "$work/try.asc" || fail "gpg cannot sign with the key $GPG_KEY"

for arch in $arches $native; do
  [ -e "$work/bin/$arch" ] || GOARCH=$arch make -s build RELEASE="$version" BIN="$work/bin/$arch"
done

# tarball packs the programs of a node as install.sh expects them, and beside them the hub's and the guest's.
tarball() { # architecture
  local name=longshore-$version-linux-$1
  local top=$work/$name
  make -s -o build install BIN="$work/bin/$1" PROGRAM="$work/bin/$native/longshore" DESTDIR="$top"
  mv "$top/usr/bin" "$top/usr/share" "$top/"
  mv "$top/lib/systemd/system" "$top/units"
  rm -r "${top:?}/usr" "${top:?}/lib"
  install -D -m 644 -t "$top/hub" contrib/systemd/longshore-hub.service contrib/packaging/debian/longshore-hub.sysusers
  install -m 755 "$work/bin/$1/longshore-hub" "$top/hub/"
  install -D -m 755 -t "$top/guest" "$work/bin/$1"/longshore-{guest,policy}
  install -m 755 install.sh "$top/"
  install -m 644 LICENSE README.md CHANGELOG.md SECURITY.md "$top/"
  printf 'version=%s\narch=%s\n' "$version" "$1" >"$top/release"
  tar -C "$work" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w -cf - "$name" |
    gzip -9n >"$work/new/longshore_${version}_linux_$1.tar.gz"
  rm -r "$top"
}

for arch in $arches; do
  tarball "$arch"
  ARCH=$arch BIN=$work/bin/$arch PROGRAM=$work/bin/$native/longshore OUT=$work/new hack/deb.sh >/dev/null
  "$work/release" sbom "$version" "$SOURCE_DATE_EPOCH" "$work/new/longshore_${version}_linux_$arch.cdx.json" "$work/bin/$arch"/*
done
install -m 755 install.sh "$work/new/"

# The repository's packages are the ones beside it.
repository() {
  local arch
  mkdir -p "$work/new/apt/pool"
  cd "$work/new/apt"
  ln ../*.deb pool/
  for arch in $arches; do
    mkdir -p "dists/stable/main/binary-$arch"
    dpkg-scanpackages --arch "$arch" pool >"dists/stable/main/binary-$arch/Packages" 2>"$work/scan" || { cat "$work/scan" >&2; return 1; }
    gzip -9nk "dists/stable/main/binary-$arch/Packages"
  done
  apt-ftparchive -o APT::FTPArchive::Release::Origin=Longshore -o APT::FTPArchive::Release::Label=Longshore \
    -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Codename=stable -o APT::FTPArchive::Release::Components=main \
    -o APT::FTPArchive::Release::Architectures="$arches" release dists/stable |
    sed "s/^Date: .*/Date: $(date -u -R -d "@$SOURCE_DATE_EPOCH" | sed 's/+0000/UTC/')/" >"$work/Release"
  mv "$work/Release" dists/stable/Release
  [ -z "${GPG_KEY:-}" ] || {
    gpg_sign --clearsign dists/stable/Release dists/stable/InRelease
    gpg_sign --detach-sign dists/stable/Release dists/stable/Release.gpg
    gpg --batch --quiet --export "$GPG_KEY" >longshore.gpg
  }
}
(repository)

(cd "$work/new" && sha256sum -- *.deb *.json *.sh *.tar.gz >"$work/sums" && mv "$work/sums" SHA256SUMS)
[ -z "${KEY:-}" ] || (cd "$work/new" && "$work/release" sign "$KEY" SHA256SUMS ./*.deb ./*.json ./*.sh ./*.tar.gz)

[ ! -e "$out" ] || mv "$out" "$work/old"
mv "$work/new" "$out"
echo "release $version is in $out"
