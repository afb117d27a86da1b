#!/usr/bin/env bash
# Builds the base of every guest: Debian's cloud kernel, an initramfs that finds
# the disk, and an ext4 image of a small Debian bookworm.
# Usage: hack/vm/base.sh <directory>   (writes vmlinuz, initrd and base.img there)
set -euo pipefail
out=${1:?usage: hack/vm/base.sh <directory>}

packages='base-files base-passwd bash dash coreutils libc-bin mount util-linux kmod procps
  grep sed gawk findutils diffutils tar gzip zstd jq strace busybox-static
  iproute2 nftables iptables crun runc containernetworking-plugins
  e2fsprogs xfsprogs systemd dbus python3
  docker-registry apache2-utils openssl ca-certificates skopeo umoci buildah'
# The kernel's modules that a node of ours may ask for; a guest loads them by
# alias on demand, as any Debian does.
modules='net fs lib crypto arch drivers/net drivers/virtio drivers/block drivers/char drivers/scsi drivers/md'

mkdir -p "$out"
out=$(cd "$out" && pwd)
tmp=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
# shellcheck disable=SC2086 # a list of words
download $packages
# The kernel's package would bring a boot loader's world: fetch it alone.
kernel=$(apt-cache "${options[@]}" depends "linux-image-cloud-${LONGSHORE_VM_ARCH:-amd64}" | awk '/Depends: linux-image-/ {print $2; exit}')
(cd "$apt/archives" && apt-get "${options[@]}" download "$kernel")

root=$tmp/root
bare "$root"
mkdir -p "$root/longshore"
for deb in "$apt"/archives/*.deb; do
  case $deb in */linux-image-*) continue ;; esac
  unpack "$deb" "$root"
done

# The files that the maintainer scripts would have made, as far as tests use them.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
cp "$root/usr/share/libc-bin/nsswitch.conf" "$root/etc/nsswitch.conf"
echo guest >"$root/etc/hostname"
printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"
printf 'nameserver 192.0.2.53\n' >"$root/etc/resolv.conf"
# The bus's user and systemd's; an identity, or every boot would be a first one.
echo 'messagebus:x:100:100::/nonexistent:/usr/sbin/nologin' >>"$root/etc/passwd"
printf '%s\n' messagebus:x:100: systemd-journal:x:101: kvm:x:102: render:x:103: sgx:x:104: input:x:105: >>"$root/etc/group"
echo 6c6f6e6773686f726500000000000001 >"$root/etc/machine-id"
mkdir -p "$root"/{home,media,mnt,opt,srv,etc/ssl/certs} "$root"/var/{lib,log,local,mail,opt}
mkdir -p -m 1777 "$root/tmp" "$root/var/tmp"
rm -rf "$root"/var/{run,lock} # directories of base-files
ln -sfn /run "$root/var/run"
ln -sfn /run/lock "$root/var/lock"
find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
for n in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -sf xtables-nft-multi "$root/usr/sbin/$n"
done
ln -sf gawk "$root/usr/bin/awk"
# An ldconfig of another machine skips the libraries, which are then found by their directory.
ldconfig -r "$root"

unpack "$apt"/archives/"$kernel"_*.deb "$tmp"
version=$(basename "$tmp"/lib/modules/*)
cp "$tmp/boot/vmlinuz-$version" "$out/vmlinuz"
mkdir -p "$root/lib/modules/$version/kernel"
cp "$tmp/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$version/"
for d in $modules; do
  [ -d "$tmp/lib/modules/$version/kernel/$d" ] || continue
  mkdir -p "$root/lib/modules/$version/kernel/$d"
  cp -r "$tmp/lib/modules/$version/kernel/$d/." "$root/lib/modules/$version/kernel/$d/"
done
depmod -b "$root" "$version"

# The initramfs: the disk's driver and its dependencies, in loading order.
init=$tmp/init
mkdir -p "$init"/{bin,lib,dev,proc,root}
cp "$root/bin/busybox" "$init/bin/busybox"
modprobe -d "$root" -S "$version" --show-depends virtio_pci >"$tmp/insmod"
modprobe -d "$root" -S "$version" --show-depends virtio_blk >>"$tmp/insmod"
awk '$1 == "insmod" && !seen[$2]++ {print $2}' "$tmp/insmod" | while read -r file; do
  cp "$file" "$init/lib/"
  echo "insmod /lib/$(basename "$file")"
done >"$tmp/loads"
cat >"$init/init" <<END
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
$(cat "$tmp/loads")
mount -t ext4 -o noatime,noinit_itable /dev/vda /root
mount -t ext4 -o noatime,noinit_itable /dev/vdb /root/longshore
umount /proc
mount -o move /dev /root/dev
exec switch_root /root /longshore/init
END
chmod +x "$init/init"
(cd "$init" && find . | cpio --quiet -o -H newc --owner 0:0 | gzip -1) >"$out/initrd"

# Guests write to a throw-away overlay of this image, so it needs no journal.
# The size is the tests' room; the file is sparse.
rm -f "$out/base.img"
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -m 0 -L base -d "$root" "$out/base.img" 8G >/dev/null
