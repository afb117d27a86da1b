#!/usr/bin/env bash
# Writes a root file system with Debian's PostgreSQL, Redis, nginx and busybox, as a
# tar for `longshore import`.
# Usage: hack/vm/services.sh <file>
set -euo pipefail
out=${1:?usage: hack/vm/services.sh <file>}
tmp=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/apt.sh"
resolver "$tmp/apt"
download base-files base-passwd dash coreutils grep sed libc-bin busybox-static postgresql-15 redis-server nginx-light

root=$tmp/root
bare "$root"
for deb in "$apt"/archives/*.deb; do
  # No compiler of queries, no Perl for scripts around the database, no init system.
  case ${deb##*/} in libllvm* | perl* | libperl* | postgresql-common* | systemd_* | udev_* | debconf_* | init-system-*) continue ;; esac
  unpack "$deb" "$root"
done
rm -rf "$root"/usr/share/{doc,man,locale,info,i18n} "$root"/usr/lib/postgresql/15/lib/bitcode "$root"/usr/lib/postgresql/15/lib/llvmjit*
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
printf '%s\n' postgres:x:101:101::/data/db:/bin/sh redis:x:102:102::/data/cache:/bin/sh >>"$root/etc/passwd"
printf '%s\n' postgres:x:101: redis:x:102: >>"$root/etc/group"
ln -sf ../lib/postgresql/15/bin/psql "$root/usr/bin/psql"
ldconfig -r "$root"

mkdir -p "$root"/data/{db,cache,log} "$root/srv/www" "$root/var/lib/nginx" "$root/var/log/nginx"
mkdir -p -m 1777 "$root/tmp"
chown 101:101 "$root/data/db"
chown 102:102 "$root/data/cache"
chmod 700 "$root/data/db" "$root/data/cache"
echo served >"$root/srv/www/index.html"
cat >"$root/etc/nginx/nginx.conf" <<'END'
user www-data;
worker_processes 1;
daemon off;
error_log stderr;
pid /run/nginx.pid;
events {}
http {
  access_log off;
  server {
    listen 80;
    root /srv/www;
  }
}
END
cat >"$root/usr/bin/postgres" <<'END'
#!/bin/sh
set -e
bin=/usr/lib/postgresql/15/bin
[ -s /data/db/PG_VERSION ] || $bin/initdb -D /data/db -A trust --locale=C --no-sync
sync # the cluster; from here on PostgreSQL syncs by itself
exec $bin/postgres -D /data/db -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off -c shared_buffers=16MB
END
chmod 755 "$root/usr/bin/postgres"
tar -C "$root" --sort=name --mtime=@0 --numeric-owner -cf "$out.part" .
mv "$out.part" "$out"
