#!/bin/sh
# Unpacks Debian's dockerd, its command line, containerd, runc and the libraries that a
# small Debian lacks into a directory, for test/e2e/swarm; nothing is installed.
# Usage: hack/dockerd.sh DIR. Ends with 75 when the packages cannot be had.
set -eu
[ $# -eq 1 ] || { echo 'usage: hack/dockerd.sh DIR' >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
[ ! -e "$dir/complete" ] || exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # apt downloads as a user of its own
cd "$tmp"
packages='docker.io containerd runc libdevmapper1.02.1'
download() {
  # Since Debian 13 the command line is a package of its own.
  # shellcheck disable=SC2046,SC2086 # lists of packages
  apt-get download -qq $packages $(apt-cache pkgnames docker-cli | grep -x docker-cli)
}
# A fresh machine has no package lists, and old lists name what is gone.
download 2>/dev/null || { apt-get update -qq && download; } || {
  echo "hack/dockerd.sh: Debian's packages $packages cannot be downloaded" >&2
  exit 75
}
for deb in ./*.deb; do
  dpkg-deb -x "$deb" "$dir"
done
: >"$dir/complete"
