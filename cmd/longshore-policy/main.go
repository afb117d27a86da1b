// Command longshore-policy evaluates the policy of a virtual machine's guest. People do not
// start it; longshore-guest does, when a policy is set. It is a program of its own because
// Open Policy Agent's libraries are larger than the whole agent, and because policies and
// requests come from outside. Start reading at internal/guest/policy/rego.
package main

import (
	"fmt"
	"os"

	"github.com/longshore/longshore/internal/guest/policy/rego"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release = "(devel)" //nolint:gochecknoglobals // only the linker sets it

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString(release + "\n")
		return
	}
	if err := rego.Main(os.Stdin, os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "longshore-policy:", err)
		os.Exit(1)
	}
}
