package native_test

import (
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// An agent under nohup ignores SIGHUP; its programs must not.
func TestNoSignalIsIgnoredForOurParentsSake(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		signal.Ignore(syscall.SIGHUP, syscall.SIGUSR1)
		defer signal.Reset(syscall.SIGHUP, syscall.SIGUSR1)
		out := newNode(t).output(t, script("grep SigIgn /proc/self/status"))
		const ours = uint64(1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGUSR1-1))
		ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(out, "SigIgn:")), 16, 64)
		if err != nil || ignored&ours != 0 {
			t.Errorf("got %q, %v", out, err)
		}
	})
}
