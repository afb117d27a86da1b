package native_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/runtimetest"
)

func TestNativeKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		runtimetest.Run(t, func(*testing.T) runtimetest.Env {
			return runtimetest.Env{Runtime: n.runtime, Supervisor: n.keeper, Cgroups: n.cgroups, Root: n.root, Dir: n.dir, ExactHooks: true}
		})
	})
}

// node is the runtime on a keeper and a cgroup of its own.
type node struct {
	runtime   *native.Runtime
	keeper    *keeper.Client
	cgroups   *cgroup.Tree
	root, dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{dir: "/run/b", root: fullRoot(t, "/run/rootfs")}
	for _, d := range []string{n.dir, n.dir + "/bound", "/run/k"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if n.cgroups, err = cgroup.New(cgroup.Options{Root: roottest.Cgroup(t)}); err != nil {
		t.Fatal(err)
	}
	if n.keeper, err = keeper.New(t.Context(), keeper.Options{StateDir: "/run/k", Binary: keeperBinary(t)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endKeeper(n.keeper) })
	spare := pin.NewSpare() // has one from the second container on
	t.Cleanup(func() { _ = spare.Close() })
	n.runtime, err = native.New(native.Options{Dir: "/run/n", Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups, Host: host(t), Spare: spare.Take})
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

// fullRoot makes a root filesystem with all of busybox and an /etc.
func fullRoot(t *testing.T, root string) string {
	t.Helper()
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
	applets, err := exec.CommandContext(t.Context(), "/bin/busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", root+"/bin/"+a); err != nil && !os.IsExist(err) {
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
