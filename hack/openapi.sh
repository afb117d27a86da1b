#!/bin/sh
# Generates the types and routes of the hub's API from its description. The
# generator is the one pinned in tools/go.mod.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 go build -modfile=tools/go.mod -o "$tmp/oapi-codegen" github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen
"$tmp/oapi-codegen" -config api/hub/v1/oapi-codegen.yaml api/hub/v1/openapi.yaml
