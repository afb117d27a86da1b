package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const childEnv = "LONGSHORE_BENCH_CHILD"

// inOwnNamespaces runs this program again where nothing of the host is touched
// and whatever is left dies at the end.
func inOwnNamespaces(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID}
	return cmd.Run()
}

// node is our own agent.
type node struct {
	dir, bin string
	cmd      *exec.Cmd
	stop     func()
}

func startNode(ctx context.Context, o *options) (*node, error) {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := linkUp("lo"); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "longshore-bench-")
	if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	n := &node{dir: dir, bin: bin, stop: func() {}}
	// The state directory is a tmpfs on real nodes.
	state := filepath.Join(dir, "run")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("mount %s: %w", state, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(fmt.Sprintf("[engine]\ncgroup_root = \"/longshore-bench-%d\"\n[network]\nmode = \"builtin\"\n%s", os.Getppid(), o.config)), 0o600); err != nil {
		return nil, err
	}
	if err := n.launch(ctx); err != nil {
		return nil, err
	}
	o.socket = filepath.Join(state, "cri.sock")
	c, err := dial(o.socket)
	if err != nil {
		return nil, err
	}
	if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		return nil, err
	}
	ref, stop, err := serveBusybox()
	if err != nil {
		return nil, err
	}
	n.stop, o.image = stop, ref
	if _, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		return nil, fmt.Errorf("PullImage: %w", err)
	}
	return n, nil
}

func (n *node) launch(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	n.cmd = exec.CommandContext(ctx, filepath.Join(n.bin, "longshore"), "agent",
		"--config", filepath.Join(n.dir, "config.toml"), "--root", filepath.Join(n.dir, "root"), "--state", filepath.Join(n.dir, "run"))
	n.cmd.Stdout, n.cmd.Stderr = log, log
	return n.cmd.Start()
}

// restart kills the agent and starts it again, without waiting for it.
func (n *node) restart(ctx context.Context) error {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	return n.launch(ctx)
}

// close stops the agent, which takes everything along when no pod is left;
// processes end with the pid namespace in any case.
func (n *node) close() {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	_ = n.cmd.Wait()
	n.stop()
	_ = unix.Unmount(filepath.Join(n.dir, "run"), unix.MNT_DETACH)
	if log, err := os.ReadFile(filepath.Join(n.dir, "agent.log")); err == nil && os.Getenv("BENCH_LOG") != "" {
		_ = os.WriteFile(os.Getenv("BENCH_LOG"), log, 0o600)
	}
	_ = os.RemoveAll(n.dir)
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
