package boot

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestTheMachinesMounts mounts a machine's file systems below a directory, twice: the second time
// nothing is mounted over it.
func TestTheMachinesMounts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		for range 2 {
			if err := Mount(root); err != nil {
				t.Fatal(err)
			}
			if err := Cgroups(root, true); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			for _, at := range []string{"sys/fs/cgroup", "run", "dev/pts", "dev/shm", "dev", "sys", "proc"} {
				if err := unix.Unmount(filepath.Join(root, at), unix.MNT_DETACH); err != nil {
					t.Errorf("unmount %s: %v", at, err)
				}
			}
		})
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			_, kind, _ := strings.Cut(line, " - ")
			if at, ok := strings.CutPrefix(f[4], root+"/"); ok {
				if found[at] != "" {
					t.Errorf("%s is mounted twice", at)
				}
				found[at] = strings.Fields(kind)[0] + " " + f[5]
			}
		}
		for at, want := range map[string]string{
			"proc": "proc rw,nosuid,nodev,noexec", "sys": "sysfs rw,nosuid,nodev,noexec", "dev/shm": "tmpfs rw,nosuid,nodev", "dev/pts": "devpts rw,nosuid,noexec",
			"run": "tmpfs rw,nosuid,nodev", "sys/fs/cgroup": "cgroup2 rw,nosuid,nodev,noexec",
		} {
			if !strings.HasPrefix(found[at], want) {
				t.Errorf("%s is %q, want %q", at, found[at], want)
			}
		}
		if st, err := os.Stat(filepath.Join(root, "dev/shm")); err != nil || st.Mode().Perm() != 0o777 || st.Mode()&os.ModeSticky == 0 {
			t.Errorf("/dev/shm: %v, %v", st, err)
		}
		if err := unix.Access(filepath.Join(root, "dev/ptmx"), unix.R_OK|unix.W_OK); err != nil {
			t.Errorf("/dev/ptmx: %v", err)
		}
	})
}

// TestLoopback: the link lo is up, and has its address.
func TestLoopback(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if err := loopback(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "ip", "addr", "show", "lo").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "UP") || !strings.Contains(string(out), "127.0.0.1/8") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// TestReapTakesWhatIsInheritedAlone: this process inherits hundreds of processes while it waits for
// hundreds of its own, and each of these stays for its waiter.
func TestReapTakesWhatIsInheritedAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var reaper sync.WaitGroup
		reaper.Go(func() { Reap(ctx, slog.New(slog.DiscardHandler)) })
		// A child of ours that has ended stays for its waiter, however long that takes to come.
		first := exec.CommandContext(t.Context(), "sh", "-c", "exit 3")
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 40 {
					// The shell starts two that it leaves behind, and ends.
					cmd := exec.CommandContext(t.Context(), "sh", "-c", "(true & (exit 1) &) ; exit 7")
					err := cmd.Run()
					if code := cmd.ProcessState.ExitCode(); code != 7 {
						t.Errorf("a child's own waiter: status %d, %v", code, err)
					}
				}
			})
		}
		all.Wait()
		var err error
		if err = first.Wait(); first.ProcessState == nil || first.ProcessState.ExitCode() != 3 {
			t.Errorf("the child that was waited for last: %v", err)
		}
		roottest.Eventually(t, "no process is left", func() bool {
			var left []int
			if left, err = endedChildren(); err != nil {
				t.Fatal(err)
			}
			return len(left) == 0
		})
		cancel()
		reaper.Wait()
	})
}
