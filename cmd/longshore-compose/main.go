// Command longshore-compose reads Compose files for longshore up, down and ps, which start it. It is a program of its own because
// the libraries that read the files cost time and memory at each start of a program that has them. Start reading at
// internal/cli/composefile/read.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/cli/composefile/read"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release = "(devel)" //nolint:gochecknoglobals // only the linker sets it

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString(release + "\n")
		return
	}
	os.Exit(read.Main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
