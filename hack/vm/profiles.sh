#!/usr/bin/env bash
# Writes what a guest needs for AppArmor and SELinux, as a tar that it unpacks over its root: the files of Debian's
# AppArmor packages, and two compiled policies, /etc/selinux/NAME/policy: small is the tests' own, and debian is that
# of Debian's package selinux-policy-default with the module container of its source package.
# Usage: hack/vm/profiles.sh <file>
set -euo pipefail
out=${1:?usage: hack/vm/profiles.sh <file>}
tmp=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
download apparmor checkpolicy secilc semodule-utils m4 zstd selinux-policy-default selinux-policy-dev selinux-policy-src

root=$tmp/root
bare "$root"
for deb in "$apt"/archives/apparmor_*.deb; do unpack "$deb" "$root"; done
rm -rf "$root"/usr/share/{doc,man,locale}
tools=$(cd "$tmp" && pwd)/tools
bare "$tools"
for package in checkpolicy secilc semodule-utils m4 libsigsegv2 zstd libsepol2 policycoreutils selinux-policy-default selinux-policy-dev selinux-policy-src; do
  unpack "$apt/archives/${package}"_*.deb "$tools"
done
export PATH=$tools/usr/bin:$PATH LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu
mkdir -p "$root"/etc/selinux/{small,debian} "$tmp/module" "$tmp/cil"
checkpolicy -M -U allow -c 33 -o "$root/etc/selinux/small/policy" test/node/testdata/selinux/policy.conf

# Debian compiles the module container into no package.
zstd -dcq "$tools/usr/src/selinux-policy-src.tar.zst" | tar -x -C "$tmp/module" --strip-components=4 \
  selinux-policy-src/policy/modules/services/container.te selinux-policy-src/policy/modules/services/container.fc
devel=$tools/usr/share/selinux/devel/include
make -s -C "$tmp/module" -f "$devel/Makefile" HEADERDIR="$devel" SHAREDIR="$tools/usr/share/selinux" NAME=default TYPE=mcs \
  AWK=awk BINDIR="$tools/usr/bin" SBINDIR="$tools/usr/sbin" container.pp
for module in "$tools"/usr/share/selinux/default/*.pp.bz2; do
  bunzip2 -c "$module" >"$tmp/cil/pp"
  "$tools/usr/libexec/selinux/hll/pp" "$tmp/cil/pp" "$tmp/cil/$(basename "$module" .pp.bz2).cil"
done
rm "$tmp/cil/pp"
"$tools/usr/libexec/selinux/hll/pp" "$tmp/module/container.pp" "$tmp/cil/container.cil"
# The guest's first process loads the policy, so everything there but containers is of the kernel's own type, and no file has a label.
cat >"$tmp/cil/guest.cil" <<'END'
(typeattributeset container_engine_domain (kernel_t))
(typeattributeset container_engine_system_domain (kernel_t))
(allow kernel_t unlabeled_t (system (module_load)))
END
secilc -M true -c 33 -o "$root/etc/selinux/debian/policy" -f /dev/null "$tmp"/cil/*.cil

tar -C "$root" --sort=name --mtime=@0 --numeric-owner -cf "$out.part" usr etc
mv "$out.part" "$out"
