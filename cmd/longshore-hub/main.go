// Longshore-hub is the control plane of a fleet whose nodes dial out: workers of a Swarm join
// it, ours and dockerd's, and run what is declared. It runs nothing itself. Start reading at
// internal/hub and internal/hub/command.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/longshore/longshore/internal/hub/command"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

func main() {
	version := release
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version
	}
	os.Exit(command.Main(context.Background(), command.Options{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Version: version,
	}))
}
