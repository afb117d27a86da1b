package logs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func cri(sec int, stream, tag, text string) string {
	return fmt.Sprintf("2026-11-20T10:00:%02d.5Z %s %s %s\n", sec, stream, tag, text)
}

func read(t *testing.T, sink core.Sink, o logs.Options) []string {
	t.Helper()
	var got []string
	err := logs.Read(t.Context(), sink, o, func(e logs.Entry) error {
		got = append(got, show(e))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func show(e logs.Entry) string {
	s := e.Stream + ":" + string(e.Text)
	if e.Partial {
		s += "…"
	}
	return s
}

func TestReadsThroughRotatedFiles(t *testing.T) {
	sink := core.Sink{Format: core.FormatCRI, Path: filepath.Join(t.TempDir(), "log"), MaxFiles: 3}
	write(t, sink.Path+".2", cri(1, "stdout", "F", "a")+cri(2, "stderr", "F", "b"))
	write(t, sink.Path+".1", cri(3, "stdout", "P", "c1")+cri(4, "stdout", "F", "c2")+"torn line\n")
	write(t, sink.Path, cri(5, "stdout", "F", "d")+"2026-11-20T10:00:06Z stdout F begun")
	write(t, sink.Path+".3", cri(0, "stdout", "F", "beyond MaxFiles"))
	all := []string{"stdout:a", "stderr:b", "stdout:c1…", "stdout:c2", "stdout:d", "stdout:begun"}
	at := func(sec int) time.Time { return time.Date(2026, 11, 20, 10, 0, sec, 0, time.UTC) }
	for name, c := range map[string]struct {
		o    logs.Options
		want []string
	}{
		"all":       {logs.Options{}, all},
		"tail 1":    {logs.Options{Tail: 1}, all[5:]},
		"tail 3":    {logs.Options{Tail: 3}, all[2:]}, // both pieces of the line c
		"tail 4":    {logs.Options{Tail: 4}, all[1:]},
		"tail much": {logs.Options{Tail: 100}, all},
		"tail none": {logs.Options{Tail: -1}, nil},
		"since":     {logs.Options{Since: at(4)}, all[3:]},
		"until":     {logs.Options{Until: at(4)}, all[:3]},
	} {
		if d := cmp.Diff(c.want, read(t, sink, c.o)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestTailOverManyChunks(t *testing.T) {
	sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(t.TempDir(), "log")}
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "line %d %s\n", i, strings.Repeat("x", i%50))
	}
	write(t, sink.Path, b.String())
	for _, n := range []int{1, 2, 1000, 9999, 19999, 20000} {
		got := read(t, sink, logs.Options{Tail: n})
		if len(got) != n || !strings.HasPrefix(got[0], fmt.Sprintf(":line %d ", 20000-n)) {
			t.Errorf("tail %d: %d lines from %q", n, len(got), got[0])
		}
	}
}

func TestRawHasNoTimes(t *testing.T) {
	err := logs.Read(t.Context(), core.Sink{Format: core.FormatRaw, Path: "/x"}, logs.Options{Since: time.Now()}, nil)
	if !errdefs.IsInvalidArgument(err) {
		t.Fatalf("err = %v", err)
	}
}

func TestWhatIsNotThereIsEmptyAndAFIFOIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), fifo} {
		sink := core.Sink{Format: core.FormatRaw, Path: path}
		if got := read(t, sink, logs.Options{}); got != nil {
			t.Errorf("%s: %v", path, got)
		}
		if lines, err := logs.Tail(sink, 3); err != nil || lines != nil {
			t.Errorf("%s: %v %v", path, lines, err)
		}
	}
}

// TestFollowAcrossRotation writes while the log is read, and rotates as the keeper and as kubelet
// do.
func TestFollowAcrossRotation(t *testing.T) {
	sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(t.TempDir(), "log"), MaxFiles: 4}
	ended := make(chan struct{})
	got := make(chan string)
	done := make(chan error, 1)
	go func() {
		done <- logs.Read(t.Context(), sink, logs.Options{Follow: true, Ended: ended}, func(e logs.Entry) error {
			got <- show(e)
			return nil
		})
	}()
	next := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case g := <-got:
				if g != w {
					t.Fatalf("got %q, want %q", g, w)
				}
			case err := <-done:
				t.Fatalf("ended before %q: %v", w, err)
			}
		}
	}
	rotate := func() {
		t.Helper()
		for i := 2; i > 0; i-- {
			_ = os.Rename(fmt.Sprintf("%s.%d", sink.Path, i), fmt.Sprintf("%s.%d", sink.Path, i+1))
		}
		if err := os.Rename(sink.Path, sink.Path+".1"); err != nil {
			t.Fatal(err)
		}
	}
	write(t, sink.Path, "one\n") // the file is created after the reader
	next(":one")
	write(t, sink.Path, "prompt> ")
	next(":prompt> …")
	write(t, sink.Path, "answer\n")
	next(":answer")
	for i := range 3 { // several rotations while the reader is busy
		write(t, sink.Path, fmt.Sprintf("r%d\n", i))
		rotate()
	}
	write(t, sink.Path, "two\n")
	next(":r0", ":r1", ":r2", ":two")
	if err := os.Rename(sink.Path, sink.Path+".20261120"); err != nil {
		t.Fatal(err)
	}
	write(t, sink.Path+".20261120", "late\n")
	write(t, sink.Path, "three\n")
	next(":late", ":three")
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestFollowEndsWithTheContextAndWithTheReader(t *testing.T) {
	sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(t.TempDir(), "log")}
	write(t, sink.Path, "one\n")
	ctx, cancel := context.WithCancel(t.Context())
	err := logs.Read(ctx, sink, logs.Options{Follow: true}, func(logs.Entry) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	stop := errors.New("stop")
	if err := logs.Read(t.Context(), sink, logs.Options{Follow: true}, func(logs.Entry) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("err = %v", err)
	}
}

func TestTailOfASinkForTheAutopsy(t *testing.T) {
	sink := core.Sink{Format: core.FormatCRI, Path: filepath.Join(t.TempDir(), "log")}
	write(t, sink.Path, cri(1, "stdout", "F", "a")+cri(2, "stdout", "P", "b1 ")+cri(3, "stderr", "F", "e")+cri(4, "stdout", "F", "b2")+cri(5, "stdout", "P", "\xff no end"))
	got, err := logs.Tail(sink, 3)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"e", "b1 b2", "\uFFFD no end"}, got); d != "" {
		t.Error(d)
	}
}

func FuzzParseCRI(f *testing.F) {
	f.Add([]byte("2026-11-20T10:00:00.5Z stdout F text"))
	f.Add([]byte("2026-11-20T10:00:00Z stderr P:x "))
	f.Add([]byte("2026-11-20T10:00:00Z stderr F"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := logs.ParseCRI(b)
		if err != nil {
			return
		}
		if e.Stream != "stdout" && e.Stream != "stderr" || e.At.IsZero() && len(b) == 0 || len(e.Text) > len(b) {
			t.Fatalf("%q: %+v", b, e)
		}
	})
}
