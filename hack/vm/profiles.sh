#!/usr/bin/env bash
# Writes the files of Debian's AppArmor packages, as a tar that a guest unpacks over its root.
# Usage: hack/vm/profiles.sh <file>
set -euo pipefail
out=${1:?usage: hack/vm/profiles.sh <file>}
tmp=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
download apparmor

root=$tmp/root
bare "$root"
for deb in "$apt"/archives/apparmor_*.deb; do unpack "$deb" "$root"; done
rm -rf "$root"/usr/share/{doc,man,locale}
tar -C "$root" --sort=name --mtime=@0 --numeric-owner -cf "$out.part" usr etc
mv "$out.part" "$out"
