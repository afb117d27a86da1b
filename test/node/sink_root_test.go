package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

var lostLine = regexp.MustCompile(`(?m)^\S+ std(out|err) F longshore: [1-9][0-9]* bytes of output lost: no space left on device$`)

// TestAFullLogIsCountedAndMarked: a container that writes more than its log's file system holds
// continues, the lost output is counted where people look, and with space the log marks the
// loss.
func TestAFullLogIsCountedAndMarked(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cfg := n.PodConfig("full")
		if err := os.MkdirAll(cfg.GetLogDirectory(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", cfg.GetLogDirectory(), "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(cfg.GetLogDirectory(), unix.MNT_DETACH) })
		shared := t.TempDir()
		pod := n.RunPod(t, cfg)
		c := nodetest.ContainerConfig("c", image, "/bin/sh", "-c",
			"trap 'echo after; touch /shared/after' USR1; trap 'exit 5' TERM; seq 1 50000; touch /shared/full; while :; do sleep 1000 & wait; done")
		c.Mounts = []*runtimeapi.Mount{{HostPath: shared, ContainerPath: "/shared"}}
		made := pod.Run(t, c)
		there := func(name string) func() bool {
			return func() bool {
				_, err := os.Stat(filepath.Join(shared, name))
				return err == nil
			}
		}
		nodetest.Eventually(t, "the container writes on", there("full"))
		nodetest.Eventually(t, "why tells of lost output", func() bool {
			out, err := n.CLI("why", made.ID)
			return err == nil && strings.Contains(out, "lost output")
		})
		out, _ := n.CLI("doctor")
		if !strings.Contains(out, "bytes of output were dropped") {
			t.Errorf("doctor does not tell of lost output:\n%s", out)
		}
		if err := unix.Mount("tmpfs", cfg.GetLogDirectory(), "tmpfs", unix.MS_REMOUNT, "size=4m"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: made.ID, Cmd: []string{"/bin/kill", "-USR1", "1"}}); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the container hears the signal", there("after"))
		nodetest.Eventually(t, "the log has what came after", func() bool {
			return strings.HasSuffix(made.ReadLog(t), " stdout F after\n")
		})
		log := made.ReadLog(t)
		if marks := lostLine.FindAllString(log, -1); len(marks) != 1 {
			t.Errorf("%d lines that tell of lost output, want 1: %q", len(marks), marks)
		}
		for line := range strings.Lines(log) {
			if f := strings.SplitN(line, " ", 4); len(f) != 4 || f[2] != "F" && f[2] != "P" || !strings.HasSuffix(line, "\n") {
				t.Errorf("torn line %q", line)
				break
			}
		}
		if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: made.ID, Timeout: 60}); err != nil {
			t.Fatal(err)
		}
		if st := made.WaitExited(t); st.GetExitCode() != 5 {
			t.Errorf("exit code %d, want 5", st.GetExitCode())
		}
		if st := made.Status(t); !strings.Contains(st.GetMessage(), "of its output is lost") {
			t.Errorf("the status of the container tells no lost output: %q", st.GetMessage())
		}
		// The verdict, the log's reader and the event tell of the loss also when the keeper has
		// forgotten the process.
		for _, tell := range []struct {
			args []string
			says string
		}{
			{[]string{"why", made.ID}, "of its output is lost: no log could take it"},
			{[]string{"events", "--json", "--no-follow", "--since", "0"}, `"lost_output":`},
		} {
			if out, err := n.CLI(tell.args...); err != nil || !strings.Contains(out, tell.says) {
				t.Errorf("%v does not say %q: %v\n%s", tell.args, tell.says, err, out)
			}
		}
		stderr, err := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), "--state", n.State, "logs", "-n", "1", made.ID).CombinedOutput()
		if err != nil || !strings.Contains(string(stderr), "of the output is lost") {
			t.Errorf("logs does not tell of lost output: %v\n%s", err, stderr)
		}
		pod.Remove(t)
		clean(t, n)
	})
}
