// Command longshore-oci is the native runtime as an OCI command line, like `longshore
// oci`. It is a program of its own because callers start it for every step of a
// container, and without the rest of longshore it starts twice as fast. Start reading at
// internal/ocicli.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/longshore/longshore/internal/ocicli"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

func main() {
	version := release
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version
	}
	os.Exit(ocicli.Main(context.Background(), ocicli.Options{Args: os.Args[1:], Version: version}))
}
