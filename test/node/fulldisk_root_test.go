package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// fullStarts is how often the agent is killed and started on each full file system.
const fullStarts = 20

// A fullDisk is a node with a small file system of its own as root or state directory.
type fullDisk struct {
	volumes
	dir string // the file system
}

// newFullDisk starts a node on a file system below its root or state directory, with a container
// that runs, one that has ended, a named volume, and an image that no container uses.
func newFullDisk(t *testing.T, below string, mount mounting) fullDisk {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-full-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := fullDisk{dir: filepath.Join(dir, below)}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, d.dir)
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[images]\nmin_free_bytes = 0\nmin_free_inodes = 0\n[face.nomad]\nenabled = true\n[face.mesos]\nenabled = true\n"})
	d.volumes = volumes{n, n.Busybox(t)}
	d.must(t, "volume", "create", "kept")
	d.must(t, "run", "-d", "--name", "runs", "-v", "kept:/data", d.image, "/bin/sh", "-c", "echo kept > /data/file; echo started; exec sleep 1000")
	d.must(t, "run", "--name", "ended", d.image, "/bin/sh", "-c", "echo last words; dd if=/dev/zero of=/big bs=1M count=1 2>/dev/null")
	for i := range 3 {
		d.must(t, "commit", "ended", fmt.Sprintf("unused:%d", i))
	}
	return d
}

// mounting mounts an empty file system.
type mounting func(t *testing.T, at string)

// tmpfs mounts a tmpfs.
func tmpfs(options string) mounting {
	return func(t *testing.T, at string) {
		t.Helper()
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, options+",mode=700"); err != nil {
			t.Fatal(err)
		}
	}
}

// ext4 makes an ext4 with so many inodes and no blocks reserved for root, and mounts it.
func ext4(size int64, inodes int) mounting {
	return func(t *testing.T, at string) {
		t.Helper()
		image := at + ".img"
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, size); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-m", "0", "-N", strconv.Itoa(inodes), image).CombinedOutput(); err != nil {
			t.Skipf("no ext4 here: %v: %s", err, out)
		}
		if out, err := exec.CommandContext(t.Context(), "mount", "-n", "-o", "loop,nodev,nosuid", "-t", "ext4", image, at).CombinedOutput(); err != nil {
			t.Skipf("ext4 cannot be mounted here: %v: %s", err, out)
		}
	}
}

// fillBytes takes all bytes of a file system, to the last page.
func (d fullDisk) fillBytes(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
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

// fillInodes takes all inodes of a file system.
func (d fullDisk) fillInodes(t *testing.T) {
	t.Helper()
	for i := 0; ; i++ {
		name := filepath.Join(d.dir, "fill-"+strconv.Itoa(i))
		err := os.WriteFile(name, nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// unfill removes the files of fillBytes and fillInodes.
func (d fullDisk) unfill(t *testing.T) {
	t.Helper()
	fillers, err := filepath.Glob(filepath.Join(d.dir, "fill*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fillers {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// knows lists the objects and logs of the node.
func (d fullDisk) knows(t *testing.T) string {
	t.Helper()
	return strings.Join([]string{
		d.must(t, "ps", "-a", "--format", "{{.ID}} {{.Name}} {{.State}} {{.ExitCode}}"),
		d.must(t, "images", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"),
		d.must(t, "volume", "ls", "--format", "{{.Name}}"),
		d.must(t, "logs", "runs"), d.must(t, "logs", "ended"),
	}, "\n")
}

func TestTheAgentStartsWithoutBytesInItsRoot(t *testing.T) {
	startsOnAFullDisk(t, "root", tmpfs("size=64m"), fullDisk.fillBytes)
}

func TestTheAgentStartsWithoutInodesInItsRoot(t *testing.T) {
	startsOnAFullDisk(t, "root", tmpfs("size=64m,nr_inodes=3000"), fullDisk.fillInodes)
}

func TestTheAgentStartsWithoutBytesInItsState(t *testing.T) {
	startsOnAFullDisk(t, "run", tmpfs("size=24m"), fullDisk.fillBytes)
}

func TestTheAgentStartsWithoutInodesInItsState(t *testing.T) {
	startsOnAFullDisk(t, "run", tmpfs("size=24m,nr_inodes=3000"), fullDisk.fillInodes)
}

func TestTheAgentStartsWithoutBytesInItsRootOnExt4(t *testing.T) {
	startsOnAFullDisk(t, "root", ext4(64<<20, 4096), fullDisk.fillBytes)
}

func TestTheAgentStartsWithoutInodesInItsRootOnExt4(t *testing.T) {
	startsOnAFullDisk(t, "root", ext4(64<<20, 1024), fullDisk.fillInodes)
}

// startsOnAFullDisk fills a directory's file system before each of twenty starts after a kill.
// Each time the agent serves and knows all that it knew, and in the end prune and rm free the
// space of unused objects.
func startsOnAFullDisk(t *testing.T, below string, mount mounting, fill func(fullDisk, *testing.T)) {
	roottest.Run(t, func(t *testing.T) {
		d := newFullDisk(t, below, mount)
		before := d.knows(t)
		for i := range fullStarts {
			fill(d, t)
			d.Kill()
			fill(d, t)
			d.Up()
			if after := d.knows(t); after != before {
				t.Fatalf("start %d: the node knows\n%s\nand knew\n%s", i, after, before)
			}
		}
		fill(d, t)
		if data, err := os.ReadFile(filepath.Join(d.Root, "volumes/cli/kept/_data/file")); err != nil || string(data) != "kept\n" {
			t.Errorf("the volume has %q, %v", data, err)
		}
		free := room(t, d.dir)
		d.must(t, "rm", "ended")
		d.must(t, "image", "prune", "-a", "-f")
		if below == "root" {
			roottest.Eventually(t, "prune and rm have freed a megabyte", func() bool { return room(t, d.dir) > free+1<<20 })
		}
		if out := d.must(t, "images"); strings.Contains(out, "unused") {
			t.Errorf("after prune: %s", out)
		}
		d.unfill(t)
		d.must(t, "run", "--rm", d.image, "/bin/true")
		d.must(t, "rm", "-f", "runs")
		d.must(t, "volume", "rm", "kept")
		clean(t, d.Node)
	})
}
