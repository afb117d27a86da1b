#!/usr/bin/env bash
# Writes the files of Debian's Podman, its monitor, and AppArmor's parser, which dockerd needs on Debian's kernel, as a tar that a guest
# unpacks over its root.
# Usage: hack/vm/podman.sh <file>
set -euo pipefail
out=${1:?usage: hack/vm/podman.sh <file>}
tmp=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
download podman conmon bsdutils apparmor
root=$tmp/root
bare "$root"
# The base has the other libraries, for buildah.
for package in podman conmon libglib2.0-0 bsdutils apparmor; do unpack "$apt"/archives/"$package"_*.deb "$root"; done
rm -rf "$root"/usr/share/{doc,man,locale,bash-completion,fish,zsh} "$root/usr/lib/systemd"
tar -C "$root" --sort=name --mtime=@0 --numeric-owner -cf "$out.part" usr etc
mv "$out.part" "$out"
