#!/bin/sh
# Unpacks Debian's nginx, redis-server, PostgreSQL and their clients, with the libraries that
# they need, into DIR/root, a root directory for containers (test/e2e/servers); nothing is
# installed and no script of a package runs.
# Usage: hack/servers.sh DIR, as root. Ends with 75 when the packages cannot be downloaded.
set -eu
[ $# -eq 1 ] || { echo 'usage: hack/servers.sh DIR' >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
[ ! -e "$dir/complete" ] || exit 0
rm -rf "$dir/root"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # apt downloads as a user of its own
cd "$tmp"
packages='base-files base-passwd dash coreutils grep sed libc-bin nginx libnginx-mod-stream redis-server postgresql postgresql-client curl'
# Only the management of these servers needs Perl, and only long queries of PostgreSQL need LLVM.
unwanted='perl|lib[a-z-]*-perl|libperl|libllvm|adduser|passwd|dpkg|usrmerge|debconf|ucf|locales|libc-l10n|iproute2|libgdbm|libsemanage|libsepol|init-system-helpers|postgresql(-client)?-common|ssl-cert|openssl|tar'

# apt resolves against an empty status file: the root also needs packages that are installed here.
: >status
names() {
  # shellcheck disable=SC2086 # a list of words
  apt-get -qq -o Dir::State::status="$tmp/status" -o APT::Install-Recommends=0 -o Debug::NoLocking=1 install -y --print-uris $packages |
    sed "s/^'[^']*' \([^_]*\)_.*/\1/" | grep -Ev "^($unwanted)[0-9.-]*[a-z0-9]*\$"
}
download() {
  names >names || return
  # shellcheck disable=SC2046 # a list of words
  [ -s names ] && apt-get download -qq $(cat names)
}
# A fresh machine has no package lists, and old lists name files that are gone.
download 2>/dev/null || { apt-get update -qq && download; } || {
  echo "hack/servers.sh: Debian's packages $packages cannot be downloaded" >&2
  exit 75
}
root=$dir/root
mkdir -p "$root"/usr/bin "$root"/usr/sbin "$root"/usr/lib "$root"/usr/lib64
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
for deb in ./*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink
done
rm -rf "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale "$root"/usr/share/i18n "$root"/usr/include

# The files that the packages' scripts would have made, as far as the servers use them.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
echo 'redis:x:901:901::/var/lib/redis:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'postgres:x:902:902::/var/lib/postgresql:/bin/sh' >>"$root/etc/passwd"
printf '%s\n' redis:x:901: postgres:x:902: >>"$root/etc/group"
cp "$root/usr/share/libc-bin/nsswitch.conf" "$root/etc/nsswitch.conf"
mkdir -p "$root"/proc "$root"/sys "$root"/dev "$root"/var/lib/redis "$root"/var/lib/postgresql "$root"/var/lib/nginx "$root"/var/log/nginx "$root"/var/www/html
mkdir -p -m 1777 "$root"/tmp "$root"/run
chown 901:901 "$root"/var/lib/redis
chown 902:902 "$root"/var/lib/postgresql
chmod 700 "$root"/var/lib/redis "$root"/var/lib/postgresql
ldconfig -r "$root"
: >"$dir/complete"
