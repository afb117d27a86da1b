package roottest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

func TestRunGivesOwnNamespaces(t *testing.T) {
	roottest.Run(t, ownNamespaces)
}

func ownNamespaces(t *testing.T) {
	if os.Getpid() != 1 {
		t.Errorf("pid %d, want 1", os.Getpid())
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Flags&net.FlagLoopback == 0 && l.Flags&net.FlagUp != 0 {
			t.Errorf("link %s of the host is visible", l.Name)
		}
		if l.Name == "lo" && l.Flags&net.FlagUp == 0 {
			t.Error("lo is down")
		}
	}
	if entries, err := os.ReadDir("/run"); err != nil || len(entries) != 0 {
		t.Errorf("/run is not fresh: %v %v", entries, err)
	}
}

// TestTheEndOfACgroupReapsOrphans: a process that has joined another one's pid namespace is reaped, so that the first process of
// that namespace ends, too.
func TestTheEndOfACgroupReapsOrphans(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var first int
		t.Run("cgroup", func(t *testing.T) {
			dir := "/sys/fs/cgroup"
			if _, err := os.Stat(dir + "/cgroup.controllers"); err != nil {
				dir += "/pids"
			}
			dir += roottest.Cgroup(t)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			start := func(flags uintptr) (int, error) {
				cmd := exec.CommandContext(context.Background(), "/bin/sleep", "1000") // the end of the cgroup ends it
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
				if err := cmd.Start(); err != nil {
					return 0, err
				}
				return cmd.Process.Pid, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0)
			}
			var err error
			if first, err = start(unix.CLONE_NEWPID); err != nil {
				t.Fatal(err)
			}
			ns, err := os.Open("/proc/" + strconv.Itoa(first) + "/ns/pid")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ns.Close() }()
			joined := make(chan error)
			go func() {
				runtime.LockOSThread() // the thread ends with the goroutine
				err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
				if err == nil {
					_, err = start(0)
				}
				joined <- err
			}()
			if err := <-joined; err != nil {
				t.Fatal(err)
			}
		})
		if err := syscall.Kill(first, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the first process of the pid namespace, after its cgroup has gone: %v", err)
		}
	})
}
