#!/bin/sh
# Unpacks Debian's dockerd, its command line, containerd, runc and the libraries that a
# small Debian lacks into a directory, for test/e2e/swarm; nothing is installed.
# Usage: hack/dockerd.sh DIR [SUITE]. Without a suite they are of the machine's own release.
# Those of another suite, such as forky for dockerd 28.5, come with their C library, their
# loader and iptables, and test/dockerd mounts them over /usr where dockerd runs.
# Ends with 75 when the packages cannot be downloaded.
set -eu
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo 'usage: hack/dockerd.sh DIR [SUITE]' >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
suite=${2:-}
[ ! -e "$dir/complete" ] || exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # apt downloads as a user of its own
cd "$tmp"
packages='docker.io containerd runc libdevmapper1.02.1'
if [ -n "$suite" ]; then
  packages='docker.io docker-cli containerd runc tini-static iptables libc6 libgcc-s1 libsystemd0 libselinux1 libpcre2-8-0 libseccomp2
    libip4tc2 libip6tc2 libxtables12 libmnl0 libnfnetlink0 libnetfilter-conntrack3 libnftnl11'
fi
# other_suite makes apt read only the suite's list, from the source of the machine's own
# release, and leaves the machine's lists alone.
other_suite() {
  # shellcheck disable=SC2016 # apt's variables
  site() { apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 'Label: Debian' 'Component: main' | head -n 1; }
  from=$(site)
  [ -n "$from" ] || { apt-get update -qq; from=$(site); }
  [ -n "$from" ] || return 1
  mkdir -p lists/partial cache/archives/partial
  key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e "$key" ] || key= # apt has keys of its own
  echo "deb ${key:+[signed-by=$key]} $from $suite main" >sources.list
  cat >apt.conf <<EOF
Dir::Etc::sourcelist "$tmp/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$tmp/lists";
Dir::Cache "$tmp/cache";
Acquire::Languages "none";
EOF
  export APT_CONFIG="$tmp/apt.conf"
  apt-get update -qq
}
download() {
  # Since Debian 13 the command line is a package of its own.
  # shellcheck disable=SC2046,SC2086 # lists of packages
  apt-get download -qq $packages $([ -n "$suite" ] || apt-cache pkgnames docker-cli | grep -x docker-cli)
}
# A fresh machine has no package lists, and old lists name files that are gone.
if [ -n "$suite" ]; then
  other_suite && download
else
  download 2>/dev/null || { apt-get update -qq && download; }
fi || {
  echo "hack/dockerd.sh: Debian's packages $packages ${suite:+of $suite }cannot be downloaded" >&2
  exit 75
}
for deb in ./*.deb; do
  dpkg-deb -x "$deb" "$dir"
done
: >"$dir/complete"
