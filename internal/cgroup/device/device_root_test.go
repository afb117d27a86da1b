package device

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// group makes a v2 cgroup of the test's own.
func group(t *testing.T) string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil || len(mounts) == 0 {
		t.Skipf("no cgroup2 is mounted: %v", err)
	}
	dir := filepath.Join(mounts[0].Mountpoint, filepath.Base(roottest.Cgroup(t))+"-device")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// within runs a program in a cgroup.
func within(t *testing.T, dir string, args ...string) error {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	return cmd.Run()
}

// TestTheKernelTakesThePrograms: programs decide over real opens, one replaces another, and the
// verifier accepts random rules.
func TestTheKernelTakesThePrograms(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := group(t)
		null := Rule{Allow: true, Kind: Char, Major: 1, Minor: 3, Access: Full}
		zero := Rule{Allow: true, Kind: Char, Major: 1, Minor: 5, Access: Read}
		err := Attach(dir, []Rule{{Kind: All, Access: Full}, null, zero})
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) && unix.Access("/sys/fs/bpf", unix.F_OK) != nil {
			t.Skipf("the kernel has no device programs: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		may := func(want bool, args ...string) {
			t.Helper()
			if err := within(t, dir, args...); (err == nil) != want {
				t.Errorf("%v: %v, want success: %t", args, err, want)
			}
		}
		may(true, "/bin/sh", "-c", "echo > /dev/null")
		may(true, "/bin/sh", "-c", "exec < /dev/zero")
		may(false, "/bin/sh", "-c", "exec > /dev/zero")
		may(false, "/bin/sh", "-c", "exec < /dev/urandom")
		may(false, "mknod", filepath.Join(t.TempDir(), "zero"), "c", "1", "5")
		may(true, "mknod", filepath.Join(t.TempDir(), "null"), "c", "1", "3")
		if err := Attach(dir, []Rule{{Allow: true, Kind: All, Access: Full}}); err != nil {
			t.Fatal(err)
		}
		may(true, "/bin/sh", "-c", "exec < /dev/urandom > /dev/zero")
		r := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			list := rules(r)
			if err := Attach(dir, append(list, Rule{Kind: Char, Major: 1, Minor: 7, Access: Write})); err != nil {
				t.Fatalf("%v: %v", list, err)
			}
		}
		fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if ids, err := attached(fd); err != nil || len(ids) != 1 {
			t.Errorf("the cgroup has the programs %v, %v; want one", ids, err)
		}
	})
}
