// Command longshore-wasm runs WebAssembly programs that hold only what they are granted, one process for each container, and compiles
// their modules. It is a program of its own because only it executes what the compiler makes. Start reading at internal/grant/wasm.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/grant/wasm"
)

func main() { os.Exit(wasm.Main(os.Args[1:])) }
