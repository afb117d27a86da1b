// Command longshore-verify verifies an image's signatures. People
// do not start it; the agent does, for each pull that a rule of its policy wants
// signed. It is a program of its own because sigstore's libraries cost ten
// megabytes and more from the moment a program that has them starts. Start
// reading at internal/image/trust/sigstore.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/image/trust/sigstore"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release = "(devel)" //nolint:gochecknoglobals // only the linker sets it

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString(release + "\n")
		return
	}
	os.Exit(sigstore.Main(os.Stdin, os.Stdout))
}
