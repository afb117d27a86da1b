package oci_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/oci"
	"github.com/longshore/longshore/internal/runtime/runtimetest"
)

func TestCrunKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { contract(t, "crun") })
}

func TestRuncKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { contract(t, "runc") })
}

func contract(t *testing.T, program string) {
	t.Helper()
	n := newNode(t, program)
	runtimetest.Run(t, func(*testing.T) runtimetest.Env {
		return runtimetest.Env{Runtime: n.runtime, Supervisor: n.keeper, Cgroups: n.cgroups, Root: n.root, Dir: n.dir}
	})
}

func TestAStartIsTwoCommands(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t, "crun")
		if _, err := n.runtime.Features(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := n.commands.Load()
		ref, err := n.cgroups.Place(core.Cgroup{}, core.CgroupRef{}, "c")
		if err != nil {
			t.Fatal(err)
		}
		spec := ocispec.New()
		spec.Root = &specs.Root{Path: "rootfs"}
		spec.Process.Args = []string{"/bin/true"}
		spec.Linux.CgroupsPath = ref.Path
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
		bundle := filepath.Join(n.dir, "c")
		if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(n.root, filepath.Join(bundle, "rootfs"), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		id := core.ID(strings.Repeat("c", 64))
		if _, err := n.runtime.Create(t.Context(), core.RuntimeCreate{ID: id, Bundle: bundle, Spec: spec, Cgroup: ref}); err != nil {
			t.Fatal(err)
		}
		if err := n.runtime.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		// crun executes itself no second time: with the container's own
		// program that makes three executions.
		if got := n.commands.Load() - before; got != 2 {
			t.Errorf("%d commands", got)
		}
		for range 2 { // the second finds nothing, and needs no program for that
			if err := n.runtime.Delete(t.Context(), id, true); err != nil {
				t.Error(err)
			}
		}
		if got := n.commands.Load() - before; got != 3 {
			t.Errorf("%d commands with the delete", got)
		}
	})
}

// node is a runtime on a keeper of its own.
type node struct {
	runtime   *oci.Runtime
	keeper    *keeper.Client
	cgroups   *cgroup.Tree
	commands  *atomic.Int64
	root, dir string
}

// counter counts the commands that pass it.
type counter struct {
	core.Launcher
	n *atomic.Int64
}

func (c counter) LaunchCommand(ctx context.Context, l core.CommandLaunch) (core.Launched, error) {
	c.n.Add(1)
	return c.Launcher.LaunchCommand(ctx, l)
}

func (c counter) Run(ctx context.Context, cmd core.Command) (core.CommandResult, error) {
	c.n.Add(1)
	return c.Launcher.Run(ctx, cmd)
}

func newNode(t *testing.T, program string) *node {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("no %s here: %v", program, err)
	}
	n := &node{dir: "/run/b", commands: &atomic.Int64{}}
	for _, d := range []string{n.dir, "/run/k"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.root = makeRoot(t)
	if n.cgroups, err = cgroup.New(cgroup.Options{Root: roottest.Cgroup(t)}); err != nil {
		t.Fatal(err)
	}
	binary := keeperBinary(t)
	if n.keeper, err = keeper.New(t.Context(), keeper.Options{StateDir: "/run/k", Binary: binary}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endKeeper(n.keeper) })
	n.runtime, err = oci.New(oci.Options{
		Name: program, Path: path, Root: "/run/r", SocketDir: "/run/c",
		Launcher: counter{n.keeper, n.commands}, Supervisor: n.keeper, Cgroups: n.cgroups,
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keeperBinary is the keeper in LONGSHORE_BIN, where nothing can be built, or a
// fresh one.
func keeperBinary(t *testing.T) string {
	t.Helper()
	const name = "longshore-keeper"
	if dir := os.Getenv("LONGSHORE_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	binary := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/longshore/longshore/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the keeper: %v\n%s", err, out)
	}
	return binary
}

// endKeeper ends the pair; the pid namespace would, but their descriptors hold
// the pipes of the test.
func endKeeper(c *keeper.Client) {
	st, err := c.Status(context.Background())
	_ = c.Close()
	if err != nil {
		return
	}
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} { // neither can start the other again
		for _, pid := range []int{st.NestPid, st.KeeperPid} {
			if pid > 1 {
				_ = unix.Kill(pid, sig)
			}
		}
	}
}

func makeRoot(t *testing.T) string {
	t.Helper()
	root := "/run/rootfs"
	for _, d := range []string{"bin", "etc", "tmp", "proc", "sys", "dev", "mnt", "root"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("needs busybox-static: %v", err)
	}
	if err := os.WriteFile(root+"/bin/busybox", busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	applets := strings.Fields("sh cat echo sleep grep hostname touch wc readlink ls tr id stty pwd true test")
	for _, a := range applets {
		if err := os.Symlink("busybox", root+"/bin/"+a); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"passwd": "root:x:0:0::/root:/bin/sh\n", "group": "root:x:0:\n"} {
		if err := os.WriteFile(root+"/etc/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root+"/tmp", 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return root
}
