#!/bin/sh
# Generates the Go code of every .proto file below api/. The plugins are the
# ones pinned in tools/go.mod; protoc is the distribution's. Every file is
# compiled under a path root of its own (longshore/v1/…), because all protocols
# of one process share one registry.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 go build -modfile=tools/go.mod -o "$tmp/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go
CGO_ENABLED=0 go build -modfile=tools/go.mod -o "$tmp/protoc-gen-go-grpc" google.golang.org/grpc/cmd/protoc-gen-go-grpc
CGO_ENABLED=0 go build -modfile=tools/go.mod -o "$tmp/protoc-gen-go-ttrpc" github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc
# shellcheck disable=SC2046 # the paths hold no spaces
protoc -I api \
	--plugin="$tmp/protoc-gen-go" --plugin="$tmp/protoc-gen-go-grpc" \
	--go_out=. --go_opt=module=github.com/longshore/longshore \
	--go-grpc_out=. --go-grpc_opt=module=github.com/longshore/longshore \
	$(cd api && find cri cri1alpha longshore mesos nomad swarm -name '*.proto' | sort)
# Kata's agent speaks ttrpc.
# shellcheck disable=SC2046 # the paths hold no spaces
protoc -I api \
	--plugin="$tmp/protoc-gen-go" --plugin="$tmp/protoc-gen-go-ttrpc" \
	--go_out=. --go_opt=module=github.com/longshore/longshore \
	--go-ttrpc_out=. --go-ttrpc_opt=module=github.com/longshore/longshore \
	$(cd api && find kata -name '*.proto' | sort)
