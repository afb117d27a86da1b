#!/usr/bin/env bash
# Writes what a guest needs for AppArmor and SELinux, as a tar that it unpacks over its root: the files of
# Debian's AppArmor packages, and the compiled policy of the tests, /etc/selinux/longshore/policy.
# Usage: hack/vm/profiles.sh <file>
set -euo pipefail
out=${1:?usage: hack/vm/profiles.sh <file>}
tmp=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
download apparmor checkpolicy

root=$tmp/root
bare "$root"
for deb in "$apt"/archives/apparmor_*.deb; do unpack "$deb" "$root"; done
rm -rf "$root"/usr/share/{doc,man,locale}
bare "$tmp/tools"
for deb in "$apt"/archives/checkpolicy_*.deb; do unpack "$deb" "$tmp/tools"; done
mkdir -p "$root/etc/selinux/longshore"
"$tmp/tools/usr/bin/checkpolicy" -M -U allow -c 33 -o "$root/etc/selinux/longshore/policy" test/node/testdata/selinux/policy.conf
tar -C "$root" --sort=name --mtime=@0 --numeric-owner -cf "$out.part" usr etc
mv "$out.part" "$out"
