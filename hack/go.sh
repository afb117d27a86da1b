#!/usr/bin/env bash
# Prints the directory of a Go toolchain that go.mod accepts, fetching one when
# the machine has none: Debian's own Go brings the golang.org/toolchain module
# through the ordinary module proxy, and its sum is compared with the one below.
set -euo pipefail
cd "$(dirname "$0")/.."
want=$(sed -n 's/^go //p' go.mod)
arch=$(dpkg --print-architecture 2>/dev/null || echo amd64)
case $arch in
amd64) sum='h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=' ;;
arm64) sum='h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=' ;;
*) sum='' ;;
esac

newer() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$2" ]; }

for dir in "$(dirname "$(command -v go 2>/dev/null || echo /nonexistent/go)")" /usr/local/go/bin "$PWD/.cache/go/bin"; do
  [ -x "$dir/go" ] || continue
  have=$(GOTOOLCHAIN=local "$dir/go" env GOVERSION 2>/dev/null | sed 's/^go//') || continue
  if newer "${have%% *}" "$want"; then
    echo "$dir"
    exit 0
  fi
done

{
  [ -n "$sum" ] || { echo "hack/go.sh: no Go toolchain is pinned for $arch: install Go $want" >&2; exit 1; }
  boot=$(command -v go || true)
  if [ -z "$boot" ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-go ca-certificates >/dev/null
    boot=$(command -v go)
  fi
  tmp=$(mktemp -d)
  trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
  json=$(cd "$tmp" && GOTOOLCHAIN=local GOFLAGS=-modcacherw GOMODCACHE="$tmp/mod" "$boot" mod download -json "golang.org/toolchain@v0.0.1-go$want.linux-$arch") ||
    { echo "hack/go.sh: the Go toolchain cannot be fetched: $(sed -n 's/.*"Error": "\(.*\)".*/\1/p' <<<"${json:-}")" >&2; exit 1; }
  got=$(sed -n 's/.*"Sum": "\(.*\)".*/\1/p' <<<"$json")
  [ "$got" = "$sum" ] || { echo "hack/go.sh: the toolchain's sum is $got, want $sum" >&2; exit 1; }
  dir=$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$json")
  mkdir -p .cache
  rm -rf .cache/go
  mv "$dir" .cache/go
  chmod -R u+w .cache/go
  # Modules are unpacked without their executable bits.
  chmod +x .cache/go/bin/* .cache/go/pkg/tool/*/* 2>/dev/null || true
} >&2
echo "$PWD/.cache/go/bin"
