#!/usr/bin/env bash
# Builds all programs into a directory: hack/build.sh DIR [LDFLAGS]
#
# longshore-guest may have ten million bytes (docs/guide/kata.md). Packages that it runs a few times
# in its life, to read a file or to describe its messages, are compiled for it without inlining: this
# saves 120 KB, and the guest's calls do not run through them.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
dir=$1 ldflags=${2:--s -w}

protobuf=google.golang.org/protobuf
seldom=()
for package in go.yaml.in/yaml/v3 regexp regexp/syntax flag log/slog github.com/sirupsen/logrus \
  $protobuf/encoding/prototext $protobuf/internal/{descfmt,encoding/text,encoding/defval,filedesc} $protobuf/reflect/protoreflect; do
  seldom+=("-gcflags=$package=-l")
done

mapfile -t others < <(go list ./cmd/... | grep -v /longshore-guest$)
CGO_ENABLED=0 go build -trimpath -ldflags="$ldflags" -o "$dir/" "${others[@]}"
CGO_ENABLED=0 go build -trimpath -ldflags="$ldflags" "${seldom[@]}" -o "$dir/" ./cmd/longshore-guest
