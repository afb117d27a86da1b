#!/usr/bin/env bash
# Checks the files of a release: sums, signatures, architectures and versions of the programs, bills of materials
# beside `go version -m`, the packages by lintian.
# Usage: hack/release-verify.sh DIRECTORY VERSION [PUBLIC-KEY]
set -euo pipefail
dir=$(realpath "${1:?usage: hack/release-verify.sh DIRECTORY VERSION [PUBLIC-KEY]}") version=$2 key=${3:-}
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
fail() {
  echo "release-verify: $*" >&2
  exit 1
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

(cd "$dir" && sha256sum --quiet -c SHA256SUMS) || fail 'a sum is wrong'
for file in "$dir"/*.deb "$dir"/*.json "$dir"/*.sh "$dir"/*.tar.gz; do
  grep -q "  ${file##*/}$" "$dir/SHA256SUMS" || fail "SHA256SUMS lacks ${file##*/}"
  [ -z "$key" ] || { base64 -d "$file.sig" >"$tmp/sig" && openssl dgst -sha256 -verify "$key" -signature "$tmp/sig" "$file" >/dev/null; } || fail "the signature of ${file##*/} is wrong"
done
repository=$dir/apt/dists/stable
if [ -e "$repository/InRelease" ]; then
  gpgv --quiet --keyring "$dir/apt/longshore.gpg" --output "$tmp/signed" "$repository/InRelease" 2>"$tmp/log" || { cat "$tmp/log" >&2; fail 'the signature of InRelease is wrong'; }
  diff "$repository/Release" "$tmp/signed" || fail 'InRelease is not Release'
  gpgv --quiet --keyring "$dir/apt/longshore.gpg" "$repository/Release.gpg" "$repository/Release" 2>"$tmp/log" || { cat "$tmp/log" >&2; fail 'the signature of Release is wrong'; }
  echo 'the apt repository is signed'
fi

native=$(dpkg --print-architecture)
for tarball in "$dir"/longshore_"${version}"_linux_*.tar.gz; do
  arch=${tarball##*_} arch=${arch%.tar.gz}
  tar -xzf "$tarball" -C "$tmp"
  top=$tmp/longshore-$version-linux-$arch
  mkdir "$tmp/$arch"
  cp "$top"/bin/* "$top"/guest/* "$top/hub/longshore-hub" "$tmp/$arch/"
  [ "$(find "$tmp/$arch" -type f | wc -l)" = "$(find cmd -mindepth 1 -maxdepth 1 | wc -l)" ] || fail "the tarball of $arch has not every program of cmd"
  for deb in "$dir"/*_"$arch".deb; do
    [ "$(dpkg-deb -f "$deb" Architecture) $(dpkg-deb -f "$deb" Version)" = "$arch $version" ] || fail "$deb: architecture or version"
    mkdir "$tmp/deb"
    dpkg-deb -x "$deb" "$tmp/deb"
    for program in "$tmp"/deb/usr/bin/*; do
      cmp "$program" "$tmp/$arch/${program##*/}" || fail "${program##*/} of ${deb##*/} is not the tarball's"
    done
    rm -r "$tmp/deb"
  done
  # The bill of materials has what the programs say themselves, and no more.
  sbom=$dir/longshore_${version}_linux_$arch.cdx.json
  for program in "$tmp/$arch"/*; do
    name=${program##*/}
    [ "$(go version -m "$program" | awk '$2 ~ /^GOARCH=/ { print substr($2, 8) }')" = "$arch" ] || fail "$name is not for $arch"
    grep -qaF "$version" "$program" || fail "$name of $arch has no version"
    go version -m "$program" | awk '$1 == "dep" { last = $2 " " $3; n[last] = 1 } $1 == "=>" { delete n[last]; n[$2 " " $3] = 1 } END { for (m in n) print m }' | sort >"$tmp/has"
    jq -r --arg p "program:$name" '. as $b | .dependencies[] | select(.ref == $p) | .dependsOn[]? as $r | $b.components[] | select(."bom-ref" == $r and .name != "std") | .name + " " + .version' "$sbom" | sort >"$tmp/says"
    diff "$tmp/has" "$tmp/says" || fail "the bill of materials of $name for $arch differs from the program"
    sum=$(jq -r --arg n "$name" '.components[] | select(.name == $n and .type == "application") | .hashes[0].content' "$sbom")
    [ "$sum" = "$(sha256sum <"$program" | cut -d' ' -f1)" ] || fail "the bill of materials has another sum of $name for $arch"
  done
  echo "bill of materials of $arch: $(jq '[.components[] | select(.type == "library")] | length' "$sbom") modules, as in the programs"
  [ "$arch" = "$native" ] || continue
  for program in "$tmp/$arch"/*; do
    case ${program##*/} in
    longshore-keeper) said=$("$program" protocol) ;;
    longshore) said=$("$program" version 2>/dev/null || true) ;;
    longshore-guest) said=$version ;; # it has no such option
    longshore-hub | longshore-oci | longshore-verify | longshore-wasm | longshore-compose | longshore-pages | longshore-policy) said=$("$program" --version) ;;
    *) fail "how does ${program##*/} state its version?" ;;
    esac
    case $said in *"$version"*) ;; *) fail "${program##*/} says $said" ;; esac
  done
  grep -qF "longshore $version" <(gzip -cd "$top/share/man/man1/longshore.1.gz") || fail 'the manual page has another version'
done
for deb in "$dir"/*.deb; do
  lintian --allow-root --fail-on=error,warning --info "$deb" || fail "lintian: ${deb##*/}"
done
echo "sums, signatures, versions and $(find "$dir" -maxdepth 1 -name '*.deb' | wc -l) packages are right"
