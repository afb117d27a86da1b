// Package machine gives the bench a machine of its own, namespaces where remnants die at the end,
// and measures CPU time and memory of a server on it.
//
// It knows no server. Start at Run and at Prepare.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stageEnv = "LONGSHORE_BENCH_STAGE"
	nameEnv  = "LONGSHORE_BENCH_NAME"
	dirEnv   = "LONGSHORE_BENCH_DIR"

	stageInit = "init"
	stageRun  = "run"
)

// Inside reports whether this process runs on a machine of its own.
func Inside() bool { return os.Getenv(stageEnv) == stageRun }

// Name is the name of this run, which no other has: for its cgroups.
func Name() string { return os.Getenv(nameEnv) }

// Dir is an empty directory on disk for this run's files; it is removed at the end.
func Dir() string { return os.Getenv(dirEnv) }

// Run runs this program again, with args, where nothing of the host is touched,
// and returns when it has ended and nothing of it is left.
func Run(ctx context.Context, args []string) error {
	name := fmt.Sprintf("longshore-bench-%d", os.Getpid())
	dir, err := os.MkdirTemp("", "longshore-bench-")
	if err != nil {
		return err
	}
	cmd, err := again(ctx, args, stageInit)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, nameEnv+"="+name, dirEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig follows the thread, not the process
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	return errors.Join(err, RemoveCgroups(name), os.RemoveAll(dir))
}

func again(ctx context.Context, args []string, stage string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stageEnv+"="+stage)
	return cmd, nil
}

// Init is the work of the first process of the new pid namespace: it reaps the servers' orphans,
// and ends with the program proper. In other processes it does nothing.
func Init() {
	if os.Getenv(stageEnv) != stageInit {
		return
	}
	cmd, err := again(context.Background(), os.Args[1:], stageRun)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case pid == cmd.Process.Pid && ws.Exited():
			os.Exit(ws.ExitStatus())
		case pid == cmd.Process.Pid, errors.Is(err, unix.ECHILD):
			os.Exit(1)
		}
	}
}

// Prepare prepares new namespaces for servers: /run and the default directories in /var/lib are
// empty and in memory, and loopback is up.
func Prepare() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/lib", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return linkUp("lo")
}

// HideUnified takes the v2 tree of a hybrid host out of this mount namespace: crun
// refuses one that owns controllers beside v1.
func HideUnified() error {
	err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // a host of one version
	}
	return err
}

func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// patience bounds the wait for the kernel to be done with processes that have
// ended: it lets go of their cgroups a little later.
const patience = 30 * time.Second

// RemoveCgroups removes the cgroups of a run, which outlive killed servers, from all hierarchies.
func RemoveCgroups(name string) error {
	trees, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", name))
	trees = append(trees, filepath.Join("/sys/fs/cgroup", name))
	var errs []error
	for _, tree := range trees {
		errs = append(errs, removeCgroup(tree))
	}
	return errors.Join(errs...)
}

func removeCgroup(tree string) error {
	timeout := time.After(patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		var dirs []string
		_ = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		var err error
		for i := len(dirs) - 1; i >= 0; i-- { // children after their parents
			if e := unix.Rmdir(dirs[i]); e != nil && !errors.Is(e, unix.ENOENT) {
				err = &os.PathError{Op: "rmdir", Path: dirs[i], Err: e}
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-timeout:
			return err
		}
	}
}
