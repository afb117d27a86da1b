// Command longshore-compose reads Compose files for longshore up, down and ps, which start it. It is a program of its own because
// the libraries that read the files cost time and memory at each start of a program that has them. Start reading at
// internal/cli/composefile/read.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/cli/composefile/read"
)

func main() { os.Exit(read.Main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }
