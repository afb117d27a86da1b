//go:build weakened

package weaken

import (
	"os"
	"slices"
	"strings"
)

// Off reports whether LONGSHORE_WEAKEN names the defence.
func Off(d Defence) bool {
	return slices.Contains(strings.Split(os.Getenv("LONGSHORE_WEAKEN"), ","), string(d))
}
