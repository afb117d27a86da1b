package engine

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
)

// parseSignal parses "SIGTERM", "TERM" or a number; "" is SIGTERM.
func parseSignal(s string) (int, error) {
	if s == "" {
		return int(unix.SIGTERM), nil
	}
	return ocispec.Signal(s)
}
