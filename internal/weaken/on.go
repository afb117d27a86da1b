//go:build weakened

package weaken

import (
	"os"
	"slices"
	"strings"
)

// Off reports whether LONGSHORE_WEAKEN names the defence.
func Off(d Defence) bool {
	return slices.Contains(strings.Split(os.Getenv(Env), ","), string(d))
}

// Environ returns the variables for a program with a small environment, so that the same defences
// are off there.
func Environ() []string { return []string{Env + "=" + os.Getenv(Env)} }
