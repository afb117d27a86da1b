#!/usr/bin/env bash
# Installs a release on a bare Debian 12 root, which mmdebstrap makes once: by install.sh from the tarball to a
# running container, with refused files and a failure on the way; over it as an upgrade; from a package; and all
# packages by apt from the release's repository. After each removal nothing may be left.
# It is root of namespaces of its own: no network but loopback, while containers run.
# Usage: hack/install-check.sh DIRECTORY PUBLIC-KEY
set -euo pipefail
[ "${1:-}" = inside ] || {
  release=$(realpath "${1:?usage: hack/install-check.sh DIRECTORY PUBLIC-KEY}") key=$(realpath "$2")
  cd "$(dirname "$0")/.."
  tar=$PWD/.cache/debian12-root.tar
  [ -e "$tar" ] || {
    mmdebstrap --quiet --format=tar --variant=apt --mode=root --include=mount bookworm "$tar.part" "${LONGSHORE_DEBIAN_MIRROR:-http://deb.debian.org}/debian"
    mv "$tar.part" "$tar"
  }
  work=$(mktemp -d)
  trap 'rm -rf --one-file-system "$work"' EXIT
  export ROOT=$work/root RELEASE=$release KEY=$key
  mkdir "$ROOT"
  tar -xf "$tar" -C "$ROOT"
  cp hack/install-check.sh "$ROOT/tmp/check"
  # A root file system for a container: busybox, and its names.
  mkdir -p "$work/busybox/bin"
  cp /bin/busybox "$work/busybox/bin/"
  for name in sh echo sleep cat; do ln -s busybox "$work/busybox/bin/$name"; done
  tar -C "$work/busybox" -cf "$work/busybox.tar" .
  unshare --mount --pid --net --uts --ipc --fork --kill-child bash "$ROOT/tmp/check" inside tarball
  unshare --mount --pid --uts --ipc --fork --kill-child bash "$ROOT/tmp/check" inside apt
  exit 0
}

work=$(dirname "$ROOT")
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
[ "$2" = apt ] || mount -t sysfs sysfs "$ROOT/sys"
[ "$2" = apt ] || mount --rbind /sys/fs/cgroup "$ROOT/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$ROOT/dev"
for node in null zero full random urandom tty; do
  : >"$ROOT/dev/$node"
  mount --bind "/dev/$node" "$ROOT/dev/$node"
done
mkdir "$ROOT/dev/pts" "$ROOT/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$ROOT/dev/pts"
ln -s pts/ptmx "$ROOT/dev/ptmx"
ln -s /proc/self/fd "$ROOT/dev/fd"
mount -t tmpfs -o mode=755 run "$ROOT/run"
mkdir -p "$ROOT/release"
mount --bind -o ro "$RELEASE" "$ROOT/release"
cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
cp "$KEY" "$ROOT/key.pub"
cp "$work/busybox.tar" "$ROOT/busybox.tar"
ip link set lo up 2>/dev/null || true
# The mounts that the agent reads are those of this root only.
mkdir -p "$ROOT/test"
cd "$ROOT"
pivot_root . test
umount -l /test
cd /
work=/tmp ROOT=
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
unset TMPDIR

fail() {
  echo "install-check: $*" >&2
  exit 1
}
# What a removal must leave as it was.
listing() { (cd / && find . -xdev \( -path ./tmp -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/apt -o -path ./var/lib/dpkg -o -path ./var/tmp -o -path ./test \) -prune -o -printf '%p %y %m %l\n' | sort); }
same() { # file of a listing, the occasion
  listing >"$work/now"
  diff "$1" "$work/now" || fail "$2: the files above were left, or taken"
}
refused() { # words, arguments of install.sh
  local words=$1 out
  shift
  ! out=$(/release/install.sh "$@" 2>&1) || fail "install.sh $* succeeded"
  [[ $out == *"$words"* ]] || fail "install.sh $*: $out"
  same "$work/before" "a refused installation"
}

if [ "$2" = apt ]; then
  list=/etc/apt/sources.list.d/longshore.list trust=trusted=yes
  if [ -e /release/apt/longshore.gpg ]; then
    cp /release/apt/longshore.gpg /usr/share/keyrings/longshore.gpg
    trust=signed-by=/usr/share/keyrings/longshore.gpg
    # apt refuses another key, and a repository that has changed.
    cp -r /release/apt/dists "$work/dists"
    mkdir "$work/changed"
    mv "$work/dists" "$work/changed/"
    sed -i 's/^Label: Longshore$/Label: Another/' "$work/changed/dists/stable"/{In,}Release
    chmod -R a+rX "$work/changed"
    for source in "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] file:/release/apt" "[$trust] file:$work/changed"; do
      echo "deb $source stable main" >"$list"
      ! apt-get update -qq -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=/dev/null -o APT::Update::Error-Mode=any >"$work/log" 2>&1 || fail "apt accepts $source"
      grep -q -e NO_PUBKEY -e BADSIG "$work/log" || { cat "$work/log"; fail "apt refuses $source for another reason"; }
    done
  fi
  echo "deb [$trust] file:/release/apt stable main" >"$list"
  printf '#!/bin/sh\nexit 101\n' >"/usr/sbin/policy-rc.d"
  chmod 755 "/usr/sbin/policy-rc.d"
  apt-get update -qq
  all='longshore longshore-kubernetes longshore-docker longshore-nomad longshore-hub longshore-oci longshore-guest'
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $all >"$work/log" 2>&1 || { cat "$work/log"; fail 'apt-get install failed'; }
  # shellcheck disable=SC2086,SC2016
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' $all
  apt-cache policy longshore | grep -q 'file:/release/apt' || fail 'longshore is not from the repository'
  for program in longshore-hub longshore-oci; do $program --version; done
  echo "apt has installed all packages from the repository ($trust)"
  # With openssl install.sh verifies the signature: it refuses another tarball and another key, and needs no sums.
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq $all >"$work/log" 2>&1 || { cat "$work/log"; fail 'apt-get purge failed'; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssl >"$work/log" 2>&1 || { cat "$work/log"; fail 'apt-get install openssl failed'; }
  tarball=$(cd /release && echo longshore_*_linux_"$(dpkg --print-architecture)".tar.gz)
  cp "/release/$tarball" "/release/$tarball.sig" /test/
  printf x >>"/test/$tarball"
  listing >"$work/before"
  refused 'has signed' "/test/$tarball" --key /key.pub
  cp "/release/$tarball" /test/
  openssl ecparam -name prime256v1 -genkey -noout | openssl ec -pubout -out "$work/other.pub" 2>/dev/null
  refused 'has signed' "/test/$tarball" --key "$work/other.pub"
  /release/install.sh "/test/$tarball" --key /key.pub >"$work/log" 2>&1 || { cat "$work/log"; fail 'the signed tarball was not installed'; }
  /usr/local/bin/longshore --version
  echo 'install.sh verifies signatures'
  exit 0
fi

arch=$(dpkg --print-architecture)
other=arm64
[ "$arch" = amd64 ] || other=amd64
tarball=$(cd /release && echo longshore_*_linux_"$arch".tar.gz)
foreign=$(cd /release && echo longshore_*_linux_"$other".tar.gz)
listing >"$work/before"

refused 'is for' "/release/$foreign"
refused 'not 1234' "/release/$tarball" --sha256 1234
cp "/release/$tarball" "/test/"
refused 'SHA256SUMS' "/test/$tarball"
cp "/release/SHA256SUMS" "/test/"
printf x >>"/test/$tarball"
refused 'SHA-256' "/test/$tarball"
cp "/release/$tarball.sig" "/test/"
refused 'openssl' "/test/$tarball" --key /key.pub
refused '--sha256 or --key' "http://127.0.0.1:1/$tarball"
refused 'curl nor wget' "https://127.0.0.1:1/$tarball"
refused 'there is no file' /release/missing.tar.gz
refused 'nothing is installed' --uninstall
# A failure in the middle is undone.
mkdir "/usr/local/share/zsh"
listing >"$work/before"
mount --bind -o ro "/usr/local/share/zsh" "/usr/local/share/zsh"
mount -o remount,bind,ro "/usr/local/share/zsh"
refused 'is undone' "/release/$tarball"
umount "/usr/local/share/zsh"
rmdir "/usr/local/share/zsh"
rm -r "/test"/*
listing >"$work/before"

start=${EPOCHREALTIME/./}
/release/install.sh "/release/$tarball"
longshore agent >"$work/agent.log" 2>&1 &
agent=$!
finish() { [ $? = 0 ] || tail -n 40 "$work/agent.log"; }
trap finish EXIT
until longshore version >/dev/null 2>&1; do
  kill -0 "$agent" || fail 'the agent ended'
  read -rt 0.1 <> <(:) || true
done
longshore import /busybox.tar example.com/busybox:1 >/dev/null
[ "$(longshore run --rm example.com/busybox:1 echo hello)" = hello ] || fail 'the container said something else'
end=${EPOCHREALTIME/./}
echo "from install.sh to the end of a container: $(((end - start) / 1000)) ms"
[ $((end - start)) -lt 60000000 ] || [ -n "${SLOW:-}" ] || fail 'that is more than a minute'

# Over an agent that runs, it is an upgrade.
longshore run -d --name stays example.com/busybox:1 sleep 100000 >/dev/null
pid=$(longshore inspect -f '{{.State.Pid}}' stays)
/release/install.sh "/release/$tarball" >"$work/log" 2>&1 || { cat "$work/log"; fail 'the second installation failed'; }
[ "$(longshore inspect -f '{{.State.Pid}} {{.State.Status}}' stays)" = "$pid running" ] || fail 'the container did not run on'
[ "$(longshore exec stays echo inside)" = inside ] || fail 'exec in the container'
! /usr/local/share/longshore/install.sh --uninstall >"$work/log" 2>&1 || fail 'the removal under a running agent succeeded'
longshore ps | grep -q stays || fail 'the refused removal has ended the container'
kill "$agent"
wait "$agent" || true
/usr/local/share/longshore/install.sh --uninstall
[ ! -e "/proc/$pid" ] || fail 'the container runs after the removal'
listing | grep -v ' \./\(etc\|var/lib\)/longshore' | sed '/^\.\/\(etc\|var\/lib\)\/longshore/d' >"$work/now"
diff "$work/before" "$work/now" || fail 'the removal left more than configuration and data'
/release/install.sh --uninstall --purge
same "$work/before" 'the purge of the tarball'
[ -z "$(grep ' /[^ ]*longshore' /proc/self/mountinfo || true)" ] || fail 'mounts are left'

deb=$(cd /release && echo longshore_*_"$arch".deb)
/release/install.sh "/release/$deb" >"$work/log" 2>&1 || { cat "$work/log"; fail 'the package was not installed'; }
/usr/bin/longshore config check
! /release/install.sh "/release/$tarball" >"$work/log" 2>&1 || fail 'a tarball was installed over a package'
/release/install.sh --uninstall --purge
same "$work/before" 'the purge of the package'
echo 'after each removal all was as before'
