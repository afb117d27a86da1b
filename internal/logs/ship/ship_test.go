package ship

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/roottest"
)

// fake is a service in the process, which refuses while down is set.
type fake struct {
	mu   sync.Mutex // guards list, down
	list []driver.Message
	down bool
}

func (f *fake) Send(_ context.Context, list []driver.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return net.ErrClosed
	}
	f.list = append(f.list, list...)
	return nil
}

func (f *fake) Close() error { return nil }

func (f *fake) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fake) texts() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.list {
		text := string(m.Text)
		if m.Part != nil {
			text += fmt.Sprintf("/%d/%v", m.Part.Ordinal, m.Part.Last)
		}
		all = append(all, text)
	}
	return all
}

type lossy struct {
	mu    sync.Mutex // guards lines, gaps
	lines int
	gaps  int
}

func (l *lossy) add(_ *core.Container, n int, _ string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 {
		l.gaps++
		return
	}
	l.lines += n
}

// rig is a container's log with a follower.
type rig struct {
	t    *testing.T
	r    *Runner
	c    *core.Container
	to   *fake
	lost lossy
	f    *follower
}

func newRig(t *testing.T, files int) *rig {
	t.Helper()
	g := &rig{t: t, to: &fake{}}
	dir := t.TempDir()
	g.r = &Runner{Dir: dir, Log: slog.New(slog.DiscardHandler), Lost: g.lost.add}
	g.c = &core.Container{Meta: core.Meta{ID: "c1"}, Config: core.ContainerConfig{
		LogDriver: &core.LogDriver{Name: "syslog"},
		IO:        core.IO{Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: filepath.Join(dir, "log"), MaxFiles: files}}},
	}}
	return g
}

// begin starts a follower, as an agent does.
func (g *rig) begin() {
	g.t.Helper()
	f, err := newFollower(g.t.Context(), g.r, g.c)
	if err != nil {
		g.t.Fatal(err)
	}
	f.sender = g.to
	g.f = f
	go f.run(g.t.Context())
	g.t.Cleanup(g.kill)
}

func (g *rig) kill() {
	g.f.stop()
	<-g.f.done
}

// write appends records, "stdout F text", to the log.
func (g *rig) write(records ...string) {
	g.t.Helper()
	f, err := os.OpenFile(g.c.Config.IO.Sinks[0].Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, r := range records {
		if _, err := fmt.Fprintf(f, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z"), r); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		g.t.Fatal(err)
	}
}

// rotate renames the files as the keeper does.
func (g *rig) rotate() {
	g.t.Helper()
	sink := g.c.Config.IO.Sinks[0]
	for i := sink.MaxFiles - 1; i > 1; i-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", sink.Path, i-1), fmt.Sprintf("%s.%d", sink.Path, i))
	}
	if err := os.Rename(sink.Path, sink.Path+".1"); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) arrive(want ...string) {
	g.t.Helper()
	roottest.Eventually(g.t, "the lines arrive: "+strings.Join(want, " "), func() bool { return len(g.to.texts()) >= len(want) })
	if got := g.to.texts(); strings.Join(got, "|") != strings.Join(want, "|") {
		g.t.Fatalf("%q, want %q", got, want)
	}
}

// TestALineIsJoinedUpToItsBound: pieces of a line are one message, and a line of 40 KiB is three.
func TestALineIsJoinedUpToItsBound(t *testing.T) {
	g := newRig(t, 3)
	long := strings.Repeat("x", 16<<10)
	g.write("stdout P one", "stderr F other", "stdout F  two", "stdout P "+long, "stdout P "+long, "stdout F "+long[:8<<10], "stdout F end")
	g.begin()
	g.arrive("other", "one two", long+"/1/false", long+"/2/false", long[:8<<10]+"/3/true", "end")
}

// TestTheNextFollowerReadsOpenLinesAgain: the position stays before a line without an end.
func TestTheNextFollowerReadsOpenLinesAgain(t *testing.T) {
	g := newRig(t, 3)
	g.write("stdout F a", "stdout P be", "stderr F c")
	g.begin()
	g.arrive("a", "c")
	g.kill()
	g.write("stdout F gin")
	g.begin()
	g.arrive("a", "c", "c", "begin")
}

// TestAnOpenLineIsBounded: a prompt does not hold back the position for ever.
func TestAnOpenLineIsBounded(t *testing.T) {
	g := newRig(t, 3)
	g.write("stdout P prompt")
	want := 1
	for range openLines + 1 {
		g.write("stderr F x")
		want++
	}
	g.begin()
	roottest.Eventually(t, "all lines arrive", func() bool { return len(g.to.texts()) == want })
	g.kill()
	g.write("stdout F end")
	g.begin()
	roottest.Eventually(t, "the last line arrives", func() bool { return g.to.texts()[len(g.to.texts())-1] == "end" })
	if again := len(g.to.texts()) - want - 1; again > batchLines {
		t.Errorf("%d lines arrived again", again)
	}
}

// TestTheNextFollowerContinuesInARotatedFile: by the content of the file, not by its name.
func TestTheNextFollowerContinuesInARotatedFile(t *testing.T) {
	g := newRig(t, 3)
	g.write("stdout F a")
	g.begin()
	g.arrive("a")
	g.kill()
	g.write("stdout F b")
	g.rotate()
	g.write("stdout F c")
	g.rotate()
	g.write("stdout F d")
	g.begin()
	g.arrive("a", "b", "c", "d")
	if g.lost.lines+g.lost.gaps > 0 {
		t.Errorf("%d lines and %d gaps", g.lost.lines, g.lost.gaps)
	}
}

// TestARotationWhileTheServiceIsDownIsCounted: the follower keeps as many files as the log has, and counts the lines of those that it
// drops.
func TestARotationWhileTheServiceIsDownIsCounted(t *testing.T) {
	g := newRig(t, 3)
	g.to.setDown(true)
	g.write("stdout F 0a", "stdout F 0b")
	g.begin()
	roottest.Eventually(t, "the service refuses lines", func() bool { return g.f.failing.Load() != nil })
	for i := 1; i <= 6; i++ {
		g.rotate()
		g.write(fmt.Sprintf("stdout F %da", i), fmt.Sprintf("stderr P %d", i), "stderr F b")
		roottest.Eventually(t, "the follower has opened the new file", g.opened)
	}
	g.to.setDown(false)
	g.arrive("0a", "0b", "4a", "4b", "5a", "5b", "6a", "6b")
	g.lost.mu.Lock()
	defer g.lost.mu.Unlock()
	if g.lost.lines != 6 || g.lost.gaps != 0 {
		t.Errorf("%d lines and %d gaps", g.lost.lines, g.lost.gaps)
	}
}

// TestARotationWithoutAnAgentIsAGap: nobody can count the lines of removed files.
func TestARotationWithoutAnAgentIsAGap(t *testing.T) {
	g := newRig(t, 2)
	g.write("stdout F a")
	g.begin()
	g.arrive("a")
	g.kill()
	for range 2 {
		g.rotate()
		g.write("stdout F lost")
	}
	g.rotate()
	g.write("stdout F d")
	g.begin()
	g.arrive("a", "lost", "d")
	if g.lost.gaps != 1 {
		t.Errorf("%d gaps", g.lost.gaps)
	}
}

// opened reports whether this process has the current file of the log open.
func (g *rig) opened() bool {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		g.t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == g.c.Config.IO.Sinks[0].Path {
			return true
		}
	}
	return false
}

// TestADamagedPositionSendsAllAgain: lines may arrive twice, and none is lost.
func TestADamagedPositionSendsAllAgain(t *testing.T) {
	g := newRig(t, 3)
	g.write("stdout F a")
	g.begin()
	g.arrive("a")
	g.kill()
	if err := os.WriteFile(g.f.path, []byte("{\"inode\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.begin()
	g.arrive("a", "a")
}
