package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// committed is a running container with so much in its layer that a commit of it takes a while.
type committed struct {
	volumes
	root string
}

func newCommitted(t *testing.T, megabytes int) committed {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-commit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, fmt.Sprintf("size=%dm", 48+5*megabytes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[images]\nmin_free_bytes = 0\n"})
	c := committed{volumes{n, n.Busybox(t)}, root}
	c.must(t, "run", "-d", "--name", "big", c.image, "/bin/sh", "-c", fmt.Sprintf("dd if=/dev/urandom of=/big bs=1M count=%d 2>/dev/null; ", megabytes)+"i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.1; done")
	roottest.Eventually(t, "the container has written its layer", func() bool { return c.count(t) > 0 })
	// A baseline must not contain the exec of count.
	roottest.Eventually(t, "no exec is left", func() bool {
		left, err := filepath.Glob(filepath.Join(n.State, "keeper", "pair-*", "io", "*", "exec-*"))
		return err == nil && len(left) == 0
	})
	return c
}

// count is how far the container has come.
func (c committed) count(t *testing.T) int {
	t.Helper()
	out, err := c.CLI("exec", "big", "/bin/cat", "/count")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(out)) // it is just being rewritten
	return n
}

func (c committed) state(t *testing.T) string {
	t.Helper()
	out, err := c.CLI("ps", "-a", "--filter", "name=big", "--format", "{{.State}}")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out)
}

// goesOn checks that the container runs, that nothing is left of a commit, and that no image is half made.
func (c committed) goesOn(t *testing.T, when string, before nodetest.Holdings) {
	t.Helper()
	roottest.Eventually(t, when+": the container runs", func() bool { return c.state(t) == "running" })
	from := c.count(t)
	roottest.Eventually(t, when+": the container goes on", func() bool { return c.count(t) > from })
	if out, err := c.CLI("run", "--rm", "--pull", "never", "made:1", "/bin/ls", "/big"); err == nil {
		c.must(t, "rmi", "made:1") // it was complete
	} else if images := c.must(t, "images"); strings.Contains(images, "made") {
		t.Errorf("%s: an image is half made: %s %v\n%s", when, out, err, images)
	}
	if left, err := os.ReadDir(filepath.Join(c.root, "image/content/ingest")); err != nil || len(left) > 0 {
		t.Errorf("%s: left in the store: %v, %v", when, left, err)
	}
	c.must(t, "check", "--images")
	same(t, c.Node, before)
}

// TestACommitOnAFullDiskKeepsNothing: the error says that no space is left, and the container
// continues.
func TestACommitOnAFullDiskKeepsNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		c := newCommitted(t, 8)
		before := c.Baseline(t).Lasting()
		filler := filepath.Join(c.root, "filler")
		for _, free := range []int64{1 << 20, 10 << 20} { // while it is packed, and when it is imported
			fill(t, filler, free)
			out, err := c.CLI("commit", "big", "made:1")
			if err == nil || !strings.Contains(err.Error()+out, "space") {
				t.Errorf("with %d bytes free: %v\n%s", free, err, out)
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			c.goesOn(t, "after a full disk", before)
		}
		c.must(t, "commit", "big", "made:1")
		c.must(t, "run", "--rm", "made:1", "/bin/ls", "/big")
		c.must(t, "rm", "-f", "big")
	})
}

// TestTheAgentDiesInACommit: at each step, the next agent lets the container continue, and keeps nothing of
// the commit.
//
// It runs with LONGSHORE_DAMAGES only.
func TestTheAgentDiesInACommit(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if os.Getenv("LONGSHORE_DAMAGES") == "" {
			t.Skip("it is one of make damages")
		}
		c := newCommitted(t, 32)
		before := c.Baseline(t).Lasting()
		for _, point := range []struct {
			when    string
			reached func() bool
		}{
			{"when the container is paused", func() bool { return c.state(t) == "paused" }},
			{"while the layer is packed", func() bool { return c.packed() > 1<<20 }},
			{"when the layer is packed", func() bool { return c.packed() > 30<<20 }},
			{"while the image is imported", func() bool {
				left, err := os.ReadDir(filepath.Join(c.root, "image/content/ingest"))
				return err == nil && len(left) > 0
			}},
		} {
			caught := false
			for try := 0; try < 20 && !caught; try++ {
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = c.CLI("commit", "big", "made:1")
				}()
				roottest.Eventually(t, point.when, func() bool {
					select {
					case <-ended:
						return true
					default:
					}
					caught = point.reached()
					return caught
				})
				c.Kill()
				<-ended
				c.Up()
				c.goesOn(t, point.when, before)
			}
			if !caught {
				t.Errorf("the agent was never killed %s", point.when)
			}
		}
		c.must(t, "commit", "big", "made:1")
		c.must(t, "run", "--rm", "made:1", "/bin/ls", "/big")
		c.must(t, "rm", "-f", "big")
	})
}

// packed is how much of the new layer the agent has written to the file without a name.
func (c committed) packed() int64 {
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(c.Pid()) + "/fd/*")
	if err != nil {
		return 0
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "/ingest/commit-") {
			if fi, err := os.Stat(fd); err == nil {
				return fi.Size()
			}
		}
	}
	return 0
}
