package sleeptest

import (
	"fmt"
	"os"
	"strings"
)

// Anonymous returns how many bytes of private anonymous memory a process has, without the changed pages of mapped files.
func Anonymous(pid int) (n uint64, err error) {
	s, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	file := false
	for line := range strings.Lines(string(s)) {
		f := strings.Fields(line)
		if v, ok := strings.CutPrefix(line, "Anonymous:"); ok && !file {
			var kib uint64
			_, _ = fmt.Sscan(v, &kib)
			n += kib << 10
		} else if len(f) > 4 && strings.Contains(f[0], "-") {
			file = f[4] != "0"
		}
	}
	return n, nil
}
