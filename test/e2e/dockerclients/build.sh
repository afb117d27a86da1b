#!/usr/bin/env bash
# Builds docker's command line and its plugin compose, from their Go modules, into the places below DIR
# that Debian's packages have, for test/dockerclients. Ends with 75 when the modules cannot be fetched.
# With "all" it also builds a program of Traefik's provider, which takes minutes the first time.
# Usage: test/e2e/dockerclients/build.sh DIR [all]
set -euo pipefail
[ $# -eq 1 ] || [ "${2:-}" = all ] || { echo 'usage: test/e2e/dockerclients/build.sh DIR [all]' >&2; exit 2; }
mkdir -p "$1/usr/bin" "$1/usr/libexec/docker/cli-plugins"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# The tree's own go.mod may have moved on: this one follows it.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
go mod download 2>"$log" || { echo "the modules of Docker's clients cannot be fetched: $(tail -n 1 "$log")"; exit 75; }
version() { go list -m -f '{{.Version}}' "$1" | sed 's/^v//; s/+incompatible$//'; }
# Docker's command line has no go.mod, for which the compiler would accept Go 1.16 only.
go build -trimpath -gcflags=github.com/docker/cli/...=-lang="$(go env GOVERSION | cut -d. -f1,2)" \
  -ldflags="-s -w -X github.com/docker/cli/cli/version.Version=$(version github.com/docker/cli)" -o "$dir/usr/bin/docker" github.com/docker/cli/cmd/docker
go build -trimpath -ldflags="-s -w -X github.com/docker/compose/v5/internal.Version=$(version github.com/docker/compose/v5)" \
  -o "$dir/usr/libexec/docker/cli-plugins/docker-compose" github.com/docker/compose/v5/cmd
if [ "${2:-}" = all ]; then
  cd traefik
  go mod download 2>"$log" || { echo "Traefik's modules cannot be fetched: $(tail -n 1 "$log")"; exit 75; }
  go vet .
  go build -trimpath -ldflags='-s -w' -o "$dir/usr/bin/traefik" .
fi
