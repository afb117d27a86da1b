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

// Environ is what a program started with a small environment has to be given, so
// that the same defences are off in it.
func Environ() []string { return []string{Env + "=" + os.Getenv(Env)} }
