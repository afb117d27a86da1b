package checkpoint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// counter counts in memory and prints each number. A restored one continues where it was.
const counter = `i=0; echo changed > /kept; rm /bin/yes; while :; do i=$((i+1)); echo $i; sleep 0.05; done`

// bed is a node with CRIU.
type bed struct {
	*nodetest.Bed
	image string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedWith(t, "")
}

// newBedWith returns a bed with further lines of the section [checkpoint].
func newBedWith(t *testing.T, config string) *bed {
	t.Helper()
	b := bedOf(t, nodetest.Options{Config: config})
	b.image = b.Busybox(t)
	return b
}

// bedOf returns a bed without its image.
func bedOf(t *testing.T, o nodetest.Options) *bed {
	t.Helper()
	criu := os.Getenv("CRIU")
	if criu == "" {
		t.Skip("no CRIU: the environment variable CRIU does not name one")
	}
	o.Config = "[network]\nmode = \"builtin\"\n[checkpoint]\nprogram = " + strconv.Quote(criu) + "\n" + o.Config
	return &bed{Bed: nodetest.NewBed(t, o)}
}

// numbers returns the output of a counter.
func (b *bed) numbers(name string) (list []int) {
	b.T.Helper()
	for line := range strings.Lines(b.Must("logs", name)) {
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			b.T.Fatalf("%s printed %q", name, line)
		}
		list = append(list, n)
	}
	return list
}

// counts waits until a counter has printed more numbers, and checks that none is missing or twice.
func (b *bed) counts(name string, first int) int {
	b.T.Helper()
	from := len(b.numbers(name))
	var list []int
	roottest.Eventually(b.T, name+" counts", func() bool { list = b.numbers(name); return len(list) > from+3 })
	for i, n := range list {
		if n != first+i {
			b.T.Fatalf("%s printed %d after %d numbers from %d", name, n, i, first)
		}
	}
	return list[len(list)-1]
}

// whole checks that records and node agree, and that no file of a call of CRIU is left.
func (b *bed) whole() {
	b.T.Helper()
	b.Must("check")
	if left, err := os.ReadDir(filepath.Join(b.State, "checkpoints")); err == nil && len(left) > 0 {
		b.T.Errorf("left %v", left)
	}
}

// TestACounterContinues stores a counter, and continues it in the same container and in a new one.
func TestACounterContinues(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		b.Must("run", "-d", "--name", "c", b.image, "sh", "-c", counter)
		b.counts("c", 1)
		b.Must("checkpoint", "c")
		c := b.Find("c")
		if c.GetState() != "exited" || c.GetAutopsy().GetAsked().GetCall() != "its checkpoint" || !c.GetCheckpoint().GetKept() {
			t.Fatalf("after its checkpoint: %v", c)
		}
		b.Must("restore", "c")
		b.counts("c", 1) // not a number is missing or printed twice
		if out := b.Must("exec", "c", "cat", "/kept"); out != "changed\n" {
			t.Errorf("its file has %q", out)
		}

		file := filepath.Join(t.TempDir(), "c.tar")
		b.Must("checkpoint", "--leave-running", "--export", file, "c")
		last := b.counts("c", 1)
		b.Must("restore", "--name", "d", file)
		first := 0
		roottest.Eventually(t, "d counts", func() bool {
			list := b.numbers("d")
			if len(list) == 0 {
				return false
			}
			first = list[0]
			return true
		})
		if first < 2 || first > last {
			t.Errorf("d began with %d, c is at %d", first, last)
		}
		b.counts("d", first)
		if out := b.Must("exec", "d", "sh", "-c", "cat /kept; ls /bin/yes 2>&1; cat /proc/self/cgroup | head -1"); !strings.HasPrefix(out, "changed\nls: /bin/yes: No such file") || !strings.HasSuffix(out, ":/\n") {
			t.Errorf("in d: %q", out)
		}
		b.shows(file)
		b.Must("stop", "-t", "0", "d")
		b.Must("rm", "-f", "c", "d")
		b.whole()
		if left, err := os.ReadDir(filepath.Join(b.Root, "checkpoints")); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

// shows compares checkpointctl's view of an archive, if there is a checkpointctl.
func (b *bed) shows(file string) {
	b.T.Helper()
	ctl := os.Getenv("CHECKPOINTCTL")
	if ctl == "" {
		return
	}
	for _, args := range [][]string{{"show", file}, {"inspect", "--all", file}} {
		out, err := exec.CommandContext(b.T.Context(), ctl, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "busybox") {
			b.T.Errorf("checkpointctl %v: %v\n%s", args, err, out)
		}
	}
}

// TestWhatCannotBeStoredRunsOn refuses checkpoints by name, and leaves the containers as they are.
func TestWhatCannotBeStoredRunsOn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		b.Must("run", "-d", "-t", "--name", "tty", b.image, "sleep", "1000")
		b.Must("run", "-d", "--rm", "--name", "once", b.image, "sleep", "1000")
		for name, words := range map[string]string{"tty": "terminal", "once": "removed when it ends", "nobody": "not found"} {
			if out, err := b.CLI("checkpoint", name); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %s, %v", name, out, err)
			}
		}
		if _, err := b.CLI("restore", "tty"); err == nil || !strings.Contains(err.Error(), "no checkpoint") {
			t.Errorf("restore without a checkpoint: %v", err)
		}
		b.Must("run", "-d", "--name", "listed", "--egress", "none", b.image, "sleep", "1000")
		b.Must("checkpoint", "listed")
		if out, err := b.CLI("restore", "listed"); err == nil || !strings.Contains(err.Error(), "has an egress list") {
			t.Errorf("a restore under an egress list: %s, %v", out, err)
		}
		bad := filepath.Join(t.TempDir(), "bad.tar")
		if err := os.WriteFile(bad, []byte("no tar"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.CLI("restore", bad); err == nil || !strings.Contains(err.Error(), "read the checkpoint") {
			t.Errorf("restore of no tar: %v", err)
		}
		for _, name := range []string{"tty", "once"} {
			if c := b.Find(name); c.GetState() != "running" {
				t.Errorf("%v", c)
			}
		}
		b.whole()
	})
}
