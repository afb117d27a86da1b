// Command longshore-pages puts the processes of a container to sleep, and supplies their memory when they wake. It is a program of its
// own because it traces programs and must be small: one of them runs for each container that wakes. Start reading at internal/sleep/pages.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/sleep/pages"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release = "(devel)" //nolint:gochecknoglobals // only the linker sets it

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString(release + "\n")
		return
	}
	os.Exit(pages.Main(os.Args[1:]))
}
