package kernel_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// pollerEnv makes this program a process without descriptors that starts a timer.
const pollerEnv = "LONGSHORE_POLLER_TEST"

func TestMain(m *testing.M) {
	if how := os.Getenv(pollerEnv); how != "" {
		if how == "opened" {
			kernel.OpenPoller()
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{}); err != nil {
			os.Exit(3)
		}
		<-time.After(time.Millisecond)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestATimerNeedsNoDescriptorAfterOpenPoller: the control without OpenPoller dies of the first timer.
func TestATimerNeedsNoDescriptorAfterOpenPoller(t *testing.T) {
	run := func(how string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), pollerEnv+"="+how)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("opened"); err != nil {
		t.Errorf("it died of a timer: %v: %s", err, out)
	}
	if out, err := run("not"); err == nil || !strings.Contains(out, "netpollinit failed") {
		t.Errorf("the control: %v: %s", err, out)
	}
}
