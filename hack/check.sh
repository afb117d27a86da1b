#!/usr/bin/env bash
# The checks before each commit: form, build, vet, and the tests that need neither
# root nor minutes. Any user can run it; results without changes come from Go's caches.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(hack/go.sh):$PATH"
export GOTOOLCHAIN=local CGO_ENABLED=0

wrong=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$wrong" ]; then
  printf 'gofmt -w %s\n' $wrong >&2
  exit 1
fi
go build ./...
go vet ./...
unset LONGSHORE_ROOT_TESTS
go test -short ./... | { grep -v '\[no test files\]$' || true; }
echo "checked in $SECONDS s"
