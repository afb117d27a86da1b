// Command release does the two parts of a release that no shell tool does: it writes the
// bill of materials of Go programs, and signs files as cosign does. hack/release.sh calls it.
package main

import (
	"errors"
	"fmt"
	"os"
)

const usage = `usage: release sbom VERSION SECONDS OUTPUT PROGRAM…
       release sign KEY FILE…`

func main() {
	if err := run(os.Args[1:], os.Getenv("COSIGN_PASSWORD")); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run executes the command in args. password opens a private key that is encrypted.
func run(args []string, password string) error {
	switch {
	case len(args) >= 5 && args[0] == "sbom":
		return writeSBOM(args[1], args[2], args[3], args[4:])
	case len(args) >= 3 && args[0] == "sign":
		return sign(args[1], password, args[2:])
	}
	return errors.New(usage)
}
