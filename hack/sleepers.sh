#!/usr/bin/env bash
# Unpacks Debian's Redis and nginx, with libraries that the machine may lack, into DIR for the tests and the benchmark of sleeping
# programs; nothing is installed. Usage: hack/sleepers.sh DIR, as root. Ends with 75 when the packages cannot be downloaded.
set -euo pipefail
dir=${1:?usage: hack/sleepers.sh DIR}
[ ! -e "$dir/complete" ] || exit 0
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# shellcheck source=hack/vm/apt.sh
. "$(dirname "$0")/vm/apt.sh"
if ! { resolver "$dir/apt" && download redis-server nginx-light; }; then
  echo 'hack/sleepers.sh: redis-server and nginx-light cannot be downloaded' >&2
  exit 75
fi
bare "$dir"
for deb in "$apt"/archives/*.deb; do
  case ${deb##*/} in libc6_* | libc-bin_* | libgcc-s1_*) continue ;; esac # the machine's own
  unpack "$deb" "$dir"
done
rm -rf "$apt"
touch "$dir/complete"
