package nodetest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// PowerCut ends the node as its machine's reset does: the agent, nest and keeper, and every process
// of a container, with SIGKILL. Then it removes cgroups, mounts, and the files in the state
// directory, as a boot does. Up is the boot.
func (n *Node) PowerCut() {
	n.t.Helper()
	n.Kill()
	n.KillPair()
	dirs := cgroupDirs(n.Cgroup)
	roottest.Eventually(n.t, "the node's cgroups are removed", func() bool {
		left := false
		for _, dir := range dirs {
			procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for p := range strings.FieldsSeq(string(procs)) {
				if pid, err := strconv.Atoi(p); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			err := unix.Rmdir(dir)
			left = left || err != nil && !errors.Is(err, unix.ENOENT)
		}
		return !left
	})
	n.unmount()
	for _, err := range []error{os.RemoveAll(n.State), os.MkdirAll(n.State, 0o700)} {
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// cgroupDirs are the directories of a cgroup and of those below it in every hierarchy, the
// deepest first.
func cgroupDirs(path string) (dirs []string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + path)
	for _, top := range append(tops, "/sys/fs/cgroup"+path) {
		_ = filepath.WalkDir(top, func(dir string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil // a hierarchy may not have it
		})
	}
	slices.Reverse(dirs)
	return dirs
}

// unmount removes the mounts below the state directory, the latest first.
func (n *Node) unmount() {
	n.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	var below []string
	for line := range strings.Lines(string(mounts)) {
		if m := strings.Fields(line)[4]; strings.HasPrefix(m, n.State+"/") {
			below = append(below, m)
		}
	}
	slices.Reverse(below)
	for _, m := range below {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			n.t.Fatalf("unmount %s: %v", m, err)
		}
	}
}
