package stdio

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newLog makes a bench with a log only, which waits for lines, and a clock.
func newLog(t *testing.T) (b *bench, clock *time.Time) {
	t.Helper()
	b = newBench(t)
	b.logOnly()
	now := testTime
	b.pump.now = func() time.Time { return now }
	return b, &now
}

func (b *bench) logOnly() { b.src.Sinks = b.src.Sinks[:1] }

// records returns the log's records without stamp and stream. It checks that each is of
// testTime or up to a second later.
func (b *bench) records() (list []string) {
	b.t.Helper()
	log, err := os.ReadFile(b.path("cri"))
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		_, record, ok := strings.Cut(line, " stdout ")
		if !ok {
			b.t.Fatalf("no record: %q", line)
		}
		list = append(list, strings.TrimSuffix(record, "\n"))
	}
	return list
}

// TestUnfinishedLinesWait writes pieces and has time pass between them: which
// records are then in the log?
func TestUnfinishedLinesWait(t *testing.T) {
	long := strings.Repeat("x", maxText)
	for _, c := range []struct {
		name  string
		steps []any // a string is written and moved, a duration passes
		want  []string
		waits bool
	}{
		{"one line in pieces", []any{"a", "b", "c\n"}, []string{"F abc"}, false},
		{"lines and a half", []any{"a\nb\nc"}, []string{"F a", "F b"}, true},
		{"its second half", []any{"a\nb\nc", "d\n"}, []string{"F a", "F b", "F cd"}, false},
		{"an empty line", []any{"\n", "\n"}, []string{"F ", "F "}, false},
		{"a question", []any{"name? ", partTime - 1}, nil, true},
		{"a question for long", []any{"name? ", partTime}, []string{"P name? "}, false},
		{"and its answer", []any{"name? ", partTime, "x\n"}, []string{"P name? ", "F x"}, false},
		{"the time is that of the first piece", []any{"a", partTime / 2, "b", partTime / 2}, []string{"P ab"}, false},
		{"a new line has its own", []any{"a", partTime / 2, "b\nc", partTime / 2}, []string{"F ab"}, true},
		{"a text as long as may be", []any{long, "\n"}, []string{"F " + long}, false},
		{"a longer one", []any{long + "y", "z\n"}, []string{"P " + long, "F yz"}, false},
		{"a longer one waits too", []any{long + "y"}, []string{"P " + long}, true},
		{"a very long one", []any{long + long + "y", partTime}, []string{"P " + long, "P " + long, "P y"}, false},
		{"twice as long as may be", []any{long + long, "\n"}, []string{"P " + long, "F " + long}, false},
		{"a line and a very long one", []any{"a\n" + long + "y\n"}, []string{"F a", "P " + long, "F y"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, clock := newLog(t)
			for _, step := range c.steps {
				switch step := step.(type) {
				case string:
					b.write(step)
				case time.Duration:
					*clock = clock.Add(step)
				}
				b.moveAll()
			}
			if got := b.records(); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("records %.60q, want %.60q", got, c.want)
			}
			if due, waits := b.src.Part(); waits != c.waits || waits && !due.After(*clock) {
				t.Errorf("waits %v until %v", waits, due)
			}
		})
	}
}

// TestNobodyWaitsWhoNeedNot: an unfinished line is written at once for a terminal, a raw
// sink, an attached client, and after the end of the process.
func TestNobodyWaitsWhoNeedNot(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"a raw sink beside": func(b *bench) { raw := NewSink(); raw.Path = b.path("raw"); b.src.Sinks = append(b.src.Sinks, raw) },
		"a terminal":        func(b *bench) { b.src.TTY = true },
		"the end":           func(b *bench) { b.src.AtOnce = true },
		"a listener": func(b *bench) {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
			b.src.Taps = []*Tap{{FD: p[1]}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newLog(t)
			b.write("waits")
			if n, _ := b.pump.Move(b.src); n != 0 {
				t.Fatalf("%d bytes did not wait", n)
			}
			change(b)
			b.write("\nnow")
			b.moveAll()
			if got := strings.Join(b.records(), "|"); got != "F waits|P now" {
				t.Errorf("records %s", got)
			}
			if _, waits := b.src.Part(); waits {
				t.Error("it waits")
			}
		})
	}
}

// TestAFullPipeIsRead: a writer that waits for room cannot finish its line.
func TestAFullPipeIsRead(t *testing.T) {
	b, _ := newLog(t)
	if _, err := unix.FcntlInt(uintptr(b.w), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	b.write(strings.Repeat("x", 4096))
	if n, _ := b.pump.Move(b.src); n != 4096 {
		t.Errorf("moved %d", n)
	}
	// Packets take a page each, however short they are.
	b, _ = newLog(t)
	if _, err := unix.FcntlInt(uintptr(b.w), unix.F_SETFL, unix.O_DIRECT|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for {
		if _, err := unix.Write(b.w, []byte("x")); err != nil {
			break
		}
		sent++
	}
	b.moveAll()
	b.pump.now = func() time.Time { return testTime.Add(partTime) }
	b.moveAll()
	b.src.AtOnce = true
	b.moveAll()
	if got := strings.Join(b.records(), ""); strings.Count(got, "x") != sent {
		t.Errorf("of %d packets: %q", sent, got)
	}
}

// TestAPartOutlivesTheKeeper: waiting text is in the pipe, and the next keeper finds it there,
// after any step of the last one.
func TestAPartOutlivesTheKeeper(t *testing.T) {
	for name, die := range map[string]func(b *bench){
		"while it waits":       func(b *bench) { b.moveAll() },
		"before it was seen":   func(*bench) {},
		"before the read":      func(b *bench) { b.begin() },
		"after the read":       func(b *bench) { b.consume() },
		"in the sink":          func(b *bench) { b.torn(0) },
		"after the sink":       func(b *bench) { b.torn(1) },
		"after all":            func(b *bench) { b.torn(1); b.j.set(idle) },
		"while the rest waits": func(b *bench) { b.torn(1); b.j.set(idle); b.moveAll() },
	} {
		for _, text := range []string{"one\ntwo\npart", "x\npart", strings.Repeat("long ", 5000) + "\npart", strings.Repeat("long ", 5000)} {
			t.Run(name, func(t *testing.T) {
				b, _ := newLog(t)
				if err := b.src.Sinks[0].Open(); err != nil {
					t.Fatal(err)
				}
				b.write(text)
				die(b)
				b.open()
				b.logOnly()
				b.pump.Recover(func(uint64, bool) *Source { return b.src })
				b.write(" end\n")
				b.moveAll()
				log, err := os.ReadFile(b.path("cri"))
				if err != nil {
					t.Fatal(err)
				}
				if got := reassemble(t, log, "stdout"); got != text+" end\n" {
					t.Errorf("log holds %.60q (%d bytes), want %.60q (%d bytes)", got, len(got), text, len(text)+5)
				}
				if n := strings.Count(string(log), " F "); n != strings.Count(text, "\n")+1 {
					t.Errorf("%d whole lines in %.100q", n, log)
				}
			})
		}
	}
}
