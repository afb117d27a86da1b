package node

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRunSaysWhatWentWrong gives `run` what cannot be: the exit status tells the
// program's mistakes from ours, the message says what, and nothing stays.
func TestRunSaysWhatWentWrong(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		if _, err := n.CLI("run", "-d", "--name", "taken", "-p", "18090:80", image, "/bin/sleep", "1000"); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			args   []string
			status int
			says   string
		}{
			"the program's own":  {[]string{image, "/bin/sh", "-c", "exit 7"}, 7, ""},
			"missing program":    {[]string{image, "/bin/nothing"}, 127, "/bin/nothing"},
			"directory":          {[]string{image, "/etc"}, 126, "/etc"},
			"unknown user":       {[]string{"-u", "ghost", image, "/bin/true"}, 125, "ghost"},
			"unknown capability": {[]string{"--cap-add", "NONSENSE", image, "/bin/true"}, 125, "NONSENSE"},
			"unknown image":      {[]string{"--pull", "never", "no/such:image"}, 125, "no/such:image"},
			"mount on a file":    {[]string{"-v", t.TempDir() + ":/etc/passwd", image, "/bin/true"}, 125, "/etc/passwd"},
			"name that is taken": {[]string{"--name", "taken", image, "/bin/true"}, 125, "taken"},
			"port that is taken": {[]string{"-p", "18090:80", image, "/bin/true"}, 125, "18090"},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := n.CLI(append([]string{"run", "--rm"}, tc.args...)...)
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != tc.status || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want status %d and %q", err, tc.status, tc.says)
				}
				// The agent removes what has ended, just after it has told so.
				nodetest.Eventually(t, "the sandbox is removed", func() bool {
					out, err := n.CLI("sandboxes")
					return err == nil && strings.Count(out, "\n") == 2 // the header and the one that runs
				})
				clean(t, n)
			})
		}
		if _, err := n.CLI("rm", "-f", "taken"); err != nil {
			t.Error(err)
		}
		clean(t, n)
	})
}
