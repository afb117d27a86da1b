// Command longshore-wasm runs WebAssembly programs that hold only what they are granted, one process for each container, and compiles
// their modules. It is a program of its own because only it executes what the compiler makes. Start reading at internal/grant/wasm.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/grant/wasm"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release = "(devel)" //nolint:gochecknoglobals // only the linker sets it

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString(release + "\n")
		return
	}
	os.Exit(wasm.Main(os.Args[1:]))
}
