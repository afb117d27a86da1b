package engine

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// parseSignal parses "SIGTERM", "TERM" or a number; "" is SIGTERM.
func parseSignal(s string) (int, error) {
	if s == "" {
		return int(unix.SIGTERM), nil
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= 64 {
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return int(n), nil
	}
	if n, ok := realtime(name); ok {
		return n, nil
	}
	return 0, fmt.Errorf("signal %q: %w", s, errdefs.ErrInvalidArgument)
}

// realtime parses SIGRTMIN+n and SIGRTMAX-n.
func realtime(name string) (int, bool) {
	for prefix, base := range map[string]int{"SIGRTMIN": 34, "SIGRTMAX": 64} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				return 0, false
			}
		}
		if base += n; base >= 34 && base <= 64 {
			return base, true
		}
	}
	return 0, false
}
