#!/usr/bin/env bash
# Installs the Debian packages that a target needs, and only those missing.
# Usage: hack/deps.sh demo|test|suite|browser|vm|release
set -euo pipefail
case ${1:-} in
demo) pkgs='ca-certificates crun busybox-static' ;;
test) pkgs='bzip2 ca-certificates git erofs-utils gcc libc6-dev crun runc busybox-static nftables iptables iproute2 docker-registry apache2-utils openssl skopeo umoci buildah containernetworking-plugins protobuf-compiler libprotobuf-dev jq podman prometheus rsyslog python3 python3-docker docker-compose systemd xz-utils bash-completion zsh fish' ;;
suite) pkgs='bash bind9-dnsutils curl dash libc-bin' ;; # programs of the images of Kubernetes' e2e suite
browser)
  pkgs='chromium fonts-dejavu-core'
  # A node of another source conflicts with Debian's npm.
  command -v npm >/dev/null || pkgs+=' nodejs npm'
  ;;
vm) pkgs='ca-certificates cryptsetup-bin erofs-utils fdisk qemu-system-arm qemu-system-x86 busybox-static crun runc cpio kmod e2fsprogs' ;;
release) pkgs='apt-utils binutils ca-certificates dpkg-dev git gpg gpg-agent gpgv jq lintian mmdebstrap openssl shellcheck xz-utils' ;;
*)
  echo 'usage: hack/deps.sh demo|test|suite|browser|vm|release' >&2
  exit 2
  ;;
esac
missing=()
for p in $pkgs; do
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null)" = 'ii ' ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
[ "$(id -u)" = 0 ] || { echo "hack/deps.sh: run as root to install: ${missing[*]}" >&2; exit 1; }
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# The installation must start no daemon on this machine.
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  made=1
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
