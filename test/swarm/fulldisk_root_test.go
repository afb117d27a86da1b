package swarm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAWorkerStartsOnAFullDisk: a killed agent with no byte left on its root, and then state, starts each
// time, is the same member of the Swarm, and has its tasks, none of them started again.
func TestAWorkerStartsOnAFullDisk(t *testing.T) {
	onAFullDisk(t, "size=64m", func(dir string) string { return filepath.Join(dir, "filler") }, fillFile)
}

// TestAWorkerStartsWithoutInodes is the same with no inode left.
func TestAWorkerStartsWithoutInodes(t *testing.T) {
	onAFullDisk(t, "size=256m,nr_inodes=3000", func(dir string) string { return filepath.Join(dir, "fillers") }, fillInodes)
}

// onAFullDisk runs a worker with root and state on file systems that fill takes up.
func onAFullDisk(t *testing.T, options string, filler func(dir string) string, fill func(*testing.T, string)) {
	t.Helper()
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-swarm-full-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		for _, name := range []string{"root", "run"} {
			at := filepath.Join(dir, name)
			if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, options+",mode=700")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}
		n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[images]\nmin_free_bytes = 0\nmin_free_inodes = 0\n[face.swarm]\nenabled = true\n"})
		ref, m := n.Busybox(t), swarmtest.New(t)
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		m.Assign(swarmtest.Task("kept", ref, "sh", "-c", "echo started; exec sleep 1000"))
		m.Reaches("kept", swarmv1.TaskState_RUNNING)
		member := func() string {
			out, err := n.CLI("swarm", "status")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out) {
				if strings.Contains(strings.ToLower(line), "node") {
					return line
				}
			}
			t.Fatalf("swarm status names no node: %s", out)
			return ""
		}
		before := member()
		for _, full := range []string{"root", "run"} {
			taken := filler(filepath.Join(dir, full))
			for i := range 5 {
				fill(t, taken)
				n.Kill()
				fill(t, taken)
				m.Forget()
				n.Up()
				m.Reaches("kept", swarmv1.TaskState_RUNNING)
				if now := member(); now != before {
					t.Fatalf("start %d with a full %s: the node is %q, was %q", i, full, now, before)
				}
				if out, err := n.CLI("logs", "kept"); err != nil || out != "started\n" {
					t.Fatalf("start %d with a full %s: the log is %q, %v", i, full, out, err)
				}
			}
			m.Assign(swarmtest.Task("on-full-"+full, ref, "true"))
			if err := os.RemoveAll(taken); err != nil {
				t.Fatal(err)
			}
			m.Assign(swarmtest.Task("after-full-"+full, ref, "true"))
			m.Reaches("after-full-"+full, swarmv1.TaskState_COMPLETE)
		}
		n.Check()
	})
}

// fillFile writes to a file until the file system has no byte left.
func fillFile(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// fillInodes makes empty files in a directory until the file system has no inode left.
func fillInodes(t *testing.T, dir string) {
	t.Helper()
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	for err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ""); err == nil {
			_ = f.Close()
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}
