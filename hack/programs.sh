#!/usr/bin/env bash
# Unpacks the Debian programs of TestProgramsInUserNamespaces into DIR/root; nothing is installed.
# Usage: hack/programs.sh DIR, as root.
set -euo pipefail
dir=${1:?usage: hack/programs.sh DIR}
[ ! -e "$dir/complete" ] || exit 0
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/vm/apt.sh"
resolver "$dir/apt"
download base-files base-passwd bash dash coreutils grep sed gawk findutils diffutils util-linux bsdutils hostname mount libc-bin busybox-static passwd login tar gzip xz-utils bzip2 zip unzip \
  rsync git strace gdb tcpdump iptables nftables iproute2 iputils-ping procps psmisc sudo cron openssh-server openssh-client bubblewrap redis-server nginx-light postgresql-15 \
  dpkg apt perl python3 sqlite3 curl openssl cpio acl attr libcap2-bin e2fsprogs fakeroot socat netcat-openbsd make gcc libc6-dev jq lsof screen tmux vim-tiny less file bc at \
  logrotate rsyslog dnsmasq-base haproxy memcached chrony adduser \
  npm python3-pip python3-setuptools python3-wheel docker.io podman crun netavark uidmap slirp4netns fuse-overlayfs
root=$dir/root
rm -rf "$root"
bare "$root"
for deb in "$apt"/archives/*.deb; do
  case ${deb##*/} in libllvm* | systemd_* | udev_*) continue ;; esac
  unpack "$deb" "$root"
done
rm -rf "$root"/usr/share/{doc,man,locale,info,i18n} "$root"/usr/lib/postgresql/15/lib/bitcode "$root"/usr/lib/postgresql/15/lib/llvmjit*
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
printf '%s\n' postgres:x:101:101::/var/lib/postgresql:/bin/sh redis:x:102:102::/var/lib/redis:/bin/sh sshd:x:103:65534::/run/sshd:/bin/sh user:x:1000:1000::/home/user:/bin/bash >>"$root/etc/passwd"
printf '%s\n' postgres:x:101: redis:x:102: user:x:1000: >>"$root/etc/group"
sed 's/:.*/:*:19000:0:99999:7:::/' "$root/etc/passwd" >"$root/etc/shadow"
chmod 640 "$root/etc/shadow"
chown 0:42 "$root/etc/shadow"
mkdir -p -m 1777 "$root/tmp" "$root/var/tmp"
mkdir -p "$root/home/user" "$root/run/sshd" "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/lib/nginx" "$root/var/log/nginx" "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"
mkdir -p "$root/usr/local/bin"
chown 1000:1000 "$root/home/user"
# Maintainer scripts make these.
for kind in auth account password session; do echo "$kind sufficient pam_permit.so" >"$root/etc/pam.d/common-$kind"; done
cp "$root/etc/pam.d/common-session" "$root/etc/pam.d/common-session-noninteractive"
ln -sf nc.openbsd "$root/usr/bin/nc"
: >"$root/var/lib/dpkg/status"
cp "$apt"/archives/zip_*.deb "$root/zip.deb"
ldconfig -r "$root"
chroot "$root" update-alternatives --quiet --install /usr/sbin/iptables iptables /usr/sbin/iptables-nft 10 || true
ln -sf gawk "$root/usr/bin/awk"
ln -sf ip6tables-nft "$root/usr/sbin/ip6tables"
tar -C "$root" --numeric-owner --xattrs -cf "$dir/root.tar" .
rm -rf "$root"
touch "$dir/complete"
