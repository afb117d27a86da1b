package stdio

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// reassemble joins CRI records as a log reader does.
func reassemble(t *testing.T, log []byte, stream string) string {
	t.Helper()
	var out strings.Builder
	for line := range bytes.Lines(log) {
		head := "2026-01-02T03:04:05.000000006Z " + stream + " "
		rest, ok := strings.CutPrefix(string(line), head)
		if !ok || len(rest) < 3 || rest[1] != ' ' || !strings.HasSuffix(rest, "\n") {
			t.Fatalf("no record of %s: %.80q", stream, line)
		}
		text := strings.TrimSuffix(rest[2:], "\n")
		if len(text) > maxText {
			t.Fatalf("a text of %d bytes", len(text))
		}
		out.WriteString(text)
		switch rest[0] {
		case 'F':
			out.WriteByte('\n')
		case 'P':
		default:
			t.Fatalf("tag %c", rest[0])
		}
	}
	return out.String()
}

// FuzzCRI splits any bytes anywhere: the records must give the same bytes, have the
// computed size, and be counted correctly at every length.
func FuzzCRI(f *testing.F) {
	f.Add([]byte("one\ntwo\nthree"), uint16(5), false)
	f.Add([]byte("\n\n\n"), uint16(1), true)
	f.Add(bytes.Repeat([]byte("x"), 3*maxText), uint16(maxText), false)
	f.Add(append(bytes.Repeat([]byte("x"), maxText), '\n'), uint16(0), false)
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, stderr bool) {
		ts := stamp(nil, testTime)
		stream := "stdout"
		if stderr {
			stream = "stderr"
		}
		at := min(int(cut), len(in))
		var log []byte
		for _, part := range [][]byte{in[:at], in[at:]} {
			for _, form := range []records{{}, {plain: true}} {
				made := checkRecords(t, form, part, ts, stderr)
				if !form.plain {
					log = append(log, made...)
				}
			}
		}
		if got := reassemble(t, log, stream); got != string(in) {
			t.Errorf("%q became %q", in, got)
		}
	})
}

// checkRecords returns the records of one part; their size must be the computed one, and their
// counts correct at every length.
func checkRecords(t *testing.T, form records, part, ts []byte, stderr bool) (made []byte) {
	t.Helper()
	for rest := part; len(rest) > 0; {
		made, rest = form.append(made, rest, ts, stderr, len(made)+1)
	}
	if got := int64(len(made)); got != form.size(part) {
		t.Errorf("%+v: %d bytes of records, foretold %d", form, got, form.size(part))
	}
	if kept, told := form.whole(made, part, len(made)); kept != len(made) || told != len(part) {
		t.Errorf("%+v: whole: kept %d of %d, told %d of %d", form, kept, len(made), told, len(part))
	}
	if len(made) >= 4096 {
		return made
	}
	for n := range made {
		kept, told := form.whole(made, part, n)
		if got, _ := form.append(nil, part[:told], ts, stderr, 1<<30); kept > n || !bytes.Equal(got, made[:kept]) {
			t.Errorf("%+v: cut at %d: kept %d, told %d", form, n, kept, told)
		}
	}
	return made
}

// bench is a source with two sinks over a pipe.
type bench struct {
	t    *testing.T
	dir  string
	w    int
	src  *Source
	j    *Journal
	pump *Pump
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	b.w = p[1]
	b.src = &Source{FD: p[0], Serial: 7}
	t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
	b.open()
	return b
}

// open starts a new keeper: only the files and the pipe are left.
func (b *bench) open() {
	b.t.Helper()
	cri, raw := NewSink(), NewSink()
	cri.CRI, cri.Path, raw.Path = true, b.path("cri"), b.path("raw")
	b.src.Sinks = []*Sink{cri, raw}
	j, err := OpenJournal(b.path("journal"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(j.Close)
	b.j, b.pump = j, NewPump(j)
	b.pump.now = func() time.Time { return testTime }
}

// begin is a transaction's beginning, as Move has it.
func (b *bench) begin() []byte {
	most, seen := chunk, []byte(nil)
	if b.src.waitsForLines() {
		most, seen = b.pump.cut(b.src)
	}
	return b.j.begin(b.src, b.pump.stamp(), most, seen)
}

func (b *bench) moveAll() {
	for n := 1; n > 0; n, _ = b.pump.Move(b.src) {
	}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(s string) {
	b.t.Helper()
	if n, err := unix.Write(b.w, []byte(s)); err != nil || n != len(s) {
		b.t.Fatal(n, err)
	}
}

func (b *bench) check(want string) {
	b.t.Helper()
	raw, err := os.ReadFile(b.path("raw"))
	if err != nil || string(raw) != want {
		b.t.Errorf("raw holds %.100q (%d bytes), want %.100q (%d bytes), %v", raw, len(raw), want, len(want), err)
	}
	cri, err := os.ReadFile(b.path("cri"))
	if got := reassemble(b.t, cri, "stdout"); err != nil || got != want {
		b.t.Errorf("cri holds %.100q (%d bytes), want %.100q (%d bytes), %v", got, len(got), want, len(want), err)
	}
}

func TestMove(t *testing.T) {
	b := newBench(t)
	if n, _ := b.pump.Move(b.src); n != 0 {
		t.Errorf("moved %d from an empty pipe", n)
	}
	want := ""
	for _, s := range []string{"a", "b\n", "fifteen bytes.\n", "sixteen bytes..\n", strings.Repeat("long ", 10000) + "\n", "end"} {
		b.write(s)
		want += s
		if n, lost := b.pump.Move(b.src); n != len(s) || lost != 0 {
			t.Errorf("moved %d of %d, lost %d", n, len(s), lost)
		}
	}
	b.check(want)
}

// TestRecoverAtEveryState stops a transaction at each point where a keeper can
// die, and has the next one finish it.
func TestRecoverAtEveryState(t *testing.T) {
	for _, size := range []int{1, 15, 16, 17, 5000, chunk} {
		text := strings.Repeat("0123456789abcd\n", size/15+1)[:size]
		for _, c := range []struct {
			name string
			die  func(b *bench)
		}{
			{"before anything", func(*bench) {}},
			{"before the read", func(b *bench) { b.begin() }},
			{"after the read", func(b *bench) { b.consume() }},
			{"before the first sink", func(b *bench) { b.consume(); b.j.set(writing) }},
			{"in the first sink", func(b *bench) { b.torn(0) }},
			{"between the sinks", func(b *bench) { b.torn(1) }},
			{"in the second sink", func(b *bench) { b.torn(2) }},
			{"after the sinks", func(b *bench) { b.torn(3) }},
			{"after all", func(b *bench) { b.torn(3); b.j.set(idle) }},
		} {
			for _, renamed := range []bool{false, true} {
				t.Run(c.name, func(t *testing.T) {
					b := newBench(t)
					b.write("before\n")
					b.pump.Move(b.src)
					b.write(text)
					c.die(b)
					if renamed { // somebody rotates while there is no keeper
						for _, n := range []string{"cri", "raw"} {
							if err := os.Rename(b.path(n), b.path(n+".20260102")); err != nil {
								t.Fatal(err)
							}
						}
					}
					b.open()
					b.pump.Recover(func(uint64, bool) *Source { return b.src })
					if b.pump.Recover(func(uint64, bool) *Source { return b.src }) {
						t.Error("recovered twice")
					}
					b.moveAll()
					b.write("after\n")
					b.moveAll()
					if renamed {
						for _, n := range []string{"cri", "raw"} {
							join(t, b.path(n+".20260102"), b.path(n))
						}
					}
					b.check("before\n" + text + "after\n")
				})
			}
		}
	}
}

// join puts an older file before a newer one.
func join(t *testing.T, older, newer string) {
	t.Helper()
	x, err := os.ReadFile(older)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(newer, append(x, y...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// consume dies right after the read.
func (b *bench) consume() {
	b.t.Helper()
	buf := b.begin()
	if n, err := unix.Read(b.src.FD, buf); err != nil || n != len(buf) {
		b.t.Fatal(n, err)
	}
}

// torn dies while writing: in the first sink (0), between the two (1), in the second
// (2), after both (3).
func (b *bench) torn(stage int) {
	b.t.Helper()
	b.consume()
	b.j.set(writing)
	data := b.j.data[:b.j.h.n]
	w := what{data: data, ts: b.j.h.ts[:stampLen], out: b.pump.out}
	for i, k := range b.src.Sinks {
		s := &b.j.h.slots[i]
		switch {
		case stage > 2*i:
			k.put(s, w)
		case stage == 2*i: // half of it
			var st unix.Stat_t
			if err := unix.Fstat(k.fd, &st); err != nil {
				b.t.Fatal(err)
			}
			s.dev, s.ino, s.off = st.Dev, st.Ino, st.Size
			s.set(begun)
			half := data
			if k.CRI {
				half, _ = records{k.Plain}.append(nil, data, w.ts, false, 1<<30)
			}
			if _, err := unix.Write(k.fd, half[:(len(half)+1)/2]); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

func TestRecoverWithoutTheProcess(t *testing.T) {
	b := newBench(t)
	b.write("text\n")
	b.consume()
	b.open()
	if b.pump.Recover(func(uint64, bool) *Source { return nil }) {
		t.Error("recovered for nobody")
	}
	if n, _ := b.pump.Move(b.src); n != 0 {
		t.Errorf("moved %d", n)
	}
}

// TestTerminalChunkIsFoundAgain reads from a terminal, dies, and counts the read bytes by the rest
// of the pattern.
func TestTerminalChunkIsFoundAgain(t *testing.T) {
	for n := range 40 {
		b := newBench(t)
		b.src.TTY = true
		text := strings.Repeat("x", n)
		if n > 0 {
			b.write(text)
		}
		buf := b.begin()
		if n > 0 {
			if _, err := unix.Read(b.src.FD, buf); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.j.consumed(); got != n {
			t.Errorf("%d bytes consumed, want %d", got, n)
		}
	}
}

func TestForeignJournalIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xff}, 3*headerSize), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if NewPump(j).Recover(func(uint64, bool) *Source { t.Error("asked for a process"); return nil }) {
		t.Error("recovered from a foreign file")
	}
}

// FuzzRecover puts any bytes into the journal: recovery must neither panic nor write
// outside the sinks.
func FuzzRecover(f *testing.F) {
	f.Add(uint32(reading), uint32(1<<31), uint32(0), []byte{1})
	f.Add(uint32(writing), uint32(70000), uint32(99), bytes.Repeat([]byte{2}, 600))
	f.Fuzz(func(t *testing.T, state, n, key uint32, rest []byte) {
		dir := t.TempDir()
		j, err := OpenJournal(filepath.Join(dir, "journal"))
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		copy(j.mem[64:headerSize], rest)
		j.h.state, j.h.n, j.h.key = state, n, key
		k := NewSink()
		k.CRI, k.Path = true, filepath.Join(dir, "log")
		s := &Source{FD: -1, Sinks: []*Sink{k, nil}}
		NewPump(j).Recover(func(uint64, bool) *Source { return s })
		k.Close()
	})
}

func TestLostIsCountedPerProcess(t *testing.T) {
	b := newBench(t)
	b.src.Sinks[0].Path = b.dir // a directory takes no output
	b.write("12345")
	if n, lost := b.pump.Move(b.src); n != 5 || lost != 5 {
		t.Errorf("moved %d, lost %d", n, lost)
	}
	if b.j.Lost(7) != 5 || b.j.Lost(8) != 0 {
		t.Errorf("lost %d", b.j.Lost(7))
	}
	b.open()
	if b.j.Lost(7) != 5 {
		t.Errorf("lost %d after a death", b.j.Lost(7))
	}
	b.j.Restore(7, b.src.Sinks)
	b.write("more\n")
	b.pump.Move(b.src)
	b.src.Sinks = b.src.Sinks[:1]
	cri, err := os.ReadFile(b.path("cri"))
	if err != nil {
		t.Fatal(err)
	}
	if got := reassemble(t, cri, "stdout"); got != "longshore: 5 bytes of output lost: is a directory\nmore\n" {
		t.Errorf("log %q", got)
	}
	b.j.ForgetLost(7)
	if b.j.Lost(7) != 0 {
		t.Error("not forgotten")
	}
}

func TestRotationKeepsTheNewest(t *testing.T) {
	b := newBench(t)
	k := b.src.Sinks[1]
	k.MaxBytes, k.MaxFiles = 10, 3
	for _, s := range []string{"aaaaaa", "bbbbbb", "cccccc", "dddddd", "this is longer than ten bytes", "ee"} {
		b.write(s)
		b.pump.Move(b.src)
	}
	for name, want := range map[string]string{"raw": "ee", "raw.1": "this is longer than ten bytes", "raw.2": "dddddd"} {
		if got, err := os.ReadFile(b.path(name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(b.path("raw.3")); err == nil {
		t.Error("raw.3 is there")
	}
	k.MaxFiles = 0
	b.write("ffffffffff")
	b.pump.Move(b.src)
	if got, err := os.ReadFile(b.path("raw")); err != nil || string(got) != "ffffffffff" {
		t.Errorf("raw holds %q, %v", got, err)
	}
}

func TestTapsLoseWhatTheyHaveNoRoomFor(t *testing.T) {
	b := newBench(t)
	var slow, gone [2]int
	for _, p := range []*[2]int{&slow, &gone} {
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _, _, _ = unix.Close(slow[0]), unix.Close(slow[1]), unix.Close(gone[1]) }()
	if err := unix.Close(gone[0]); err != nil {
		t.Fatal(err)
	}
	b.src.Taps = []*Tap{{FD: slow[1]}, {FD: gone[1]}}
	total := 0
	for range 5 {
		b.write(strings.Repeat("x", 40000))
		n, lost := b.pump.Move(b.src)
		total += n
		if lost != 0 {
			t.Errorf("lost %d", lost)
		}
	}
	if b.src.Taps[0].Gone || !b.src.Taps[1].Gone {
		t.Errorf("taps %+v %+v", b.src.Taps[0], b.src.Taps[1])
	}
	if fi, err := os.Stat(b.path("raw")); err != nil || fi.Size() != int64(total) {
		t.Errorf("%v %v", fi, err)
	}
}

// TestLinksAreNotFollowed: a container's link in the place of a file leads nowhere, to no FIFO
// either.
func TestLinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{file, fifo, filepath.Join(dir, "none")} {
		link := filepath.Join(dir, "link"+strconv.Itoa(i))
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		k := NewSink()
		if k.Path = link; !errors.Is(k.Open(), unix.ELOOP) {
			t.Errorf("%s was opened by a link", to)
		}
		k.Close()
		if k.CRI = true; !errors.Is(k.Open(), unix.ELOOP) {
			t.Errorf("%s was opened by a log that is a link", to)
		}
		k.Close()
	}
}
