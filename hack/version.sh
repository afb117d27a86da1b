#!/bin/sh
# Prints the version of this tree: VERSION if it is set, or else one made of the last tag and the commit.
set -eu
cd "$(dirname "$0")/.."
version=${VERSION:-$(git describe --tags --match 'v[0-9]*' --dirty=+dirty 2>/dev/null | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/' || true)}
echo "${version:-0.0.0+$(git rev-parse --short HEAD 2>/dev/null || echo local)}"
