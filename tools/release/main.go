// Command release does the parts of a release that no shell tool does: it writes the bill of
// materials of Go programs, makes keys as cosign does, and signs files with them. hack/release.sh calls it.
package main

import (
	"errors"
	"fmt"
	"os"
)

const usage = `usage: release sbom VERSION SECONDS OUTPUT PROGRAM…
       release key KEY PUBLIC-KEY
       release sign KEY FILE…
COSIGN_PASSWORD is the password of KEY.`

func main() {
	if err := run(os.Args[1:], os.Getenv("COSIGN_PASSWORD")); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run executes the command in args. password encrypts a new private key, and opens one that is encrypted.
func run(args []string, password string) error {
	switch {
	case len(args) >= 5 && args[0] == "sbom":
		return writeSBOM(args[1], args[2], args[3], args[4:])
	case len(args) == 3 && args[0] == "key":
		return newKey(args[1], args[2], password)
	case len(args) >= 3 && args[0] == "sign":
		return sign(args[1], password, args[2:])
	}
	return errors.New(usage)
}
