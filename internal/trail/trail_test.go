package trail

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func opened(t *testing.T, o Options) *Log {
	t.Helper()
	if o.Bytes == 0 {
		o.Bytes, o.Files = 1<<20, 3
	}
	o.Logger = slog.New(slog.DiscardHandler)
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func verified(t *testing.T, dir string) int {
	t.Helper()
	n, err := verify(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func verify(t *testing.T, dir string) (int, error) {
	t.Helper()
	r, err := ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	return r.Verify()
}

// TestTheChain: the lines of several openings and files form one chain, and a rotation keeps the newest files.
func TestTheChain(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		l := opened(t, Options{Dir: dir, Bytes: 64 << 10, Files: 3})
		for i := range 500 {
			l.Write(Record{Verb: "start", Name: fmt.Sprint(i), Outcome: OK})
		}
		if c := l.Counts(); c.Written < 500 || c.Lost != 0 {
			t.Fatalf("counts %+v", c)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n := verified(t, dir)
	if files, _ := filepath.Glob(filepath.Join(dir, "audit.log*")); len(files) != 3 || n < 500 || n > 1510 {
		t.Errorf("%d files with %d lines", len(files), n)
	}
}

// TestEachChangeIsFound: Verify finds a changed byte, a removed line, two exchanged lines, a removed end and a removed file.
func TestEachChangeIsFound(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, Options{Dir: dir})
	for i := range 20 {
		l.Write(Record{Verb: "exec", Name: fmt.Sprint(i), Outcome: OK})
	}
	path := filepath.Join(dir, current)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	lines = lines[:len(lines)-1]
	join := func(parts ...[][]byte) []byte {
		var b []byte
		for _, p := range parts {
			b = append(b, bytes.Join(p, nil)...)
		}
		return b
	}
	changed := map[string][]byte{
		"a line is removed": join(lines[:5], lines[6:]), "two lines are exchanged": join(lines[:5], lines[6:7], lines[5:6], lines[7:]),
		"the end is removed": join(lines[:15]), "a line is twice there": join(lines[:5], lines[4:]), "all is removed": nil,
		"a line is added":       append(bytes.Clone(whole), "{}\n"...),
		"the name is another":   bytes.Replace(whole, []byte(`"name":"7"`), []byte(`"name":"8"`), 1),
		"the last line is torn": whole[:len(whole)-3],
	}
	for i := range whole {
		if i%97 == 0 && whole[i] != '\n' {
			b := bytes.Clone(whole)
			b[i] ^= 1
			changed[fmt.Sprint("byte ", i)] = b
		}
	}
	for name, b := range changed {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := verify(t, dir); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %d lines, %v", name, n, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := verified(t, dir); n != 21 {
		t.Errorf("%d lines", n)
	}
}

// TestAfterACrash: Open removes an incomplete last line, and continues the chain, also after a crash in a rotation.
func TestAfterACrash(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"an incomplete line": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString(`{"hash":"00`)
			}
			return errors.Join(err, f.Close())
		},
		"in a rotation": func(path string) error { return os.Rename(path, path+".1") },
		"an empty file": func(path string) error {
			return errors.Join(os.Rename(path, path+".1"), os.WriteFile(path, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := opened(t, Options{Dir: dir})
			l.Write(Record{Verb: "start", Outcome: OK})
			if err := errors.Join(l.Close(), damage(filepath.Join(dir, current))); err != nil {
				t.Fatal(err)
			}
			l = opened(t, Options{Dir: dir})
			l.Write(Record{Verb: "stop", Outcome: OK})
			if n := verified(t, dir); n != 4 {
				t.Errorf("%d lines, want 4", n)
			}
		})
	}
}

// TestADamagedFileIsSetAside: an agent starts with another file, and Verify finds the hole.
func TestADamagedFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, Options{Dir: dir})
	l.Write(Record{Verb: "start", Outcome: OK})
	path := filepath.Join(dir, current)
	if err := errors.Join(l.Close(), os.WriteFile(path, []byte("garbage\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	l = opened(t, Options{Dir: dir})
	l.Write(Record{Verb: "stop", Outcome: OK})
	r, err := ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var v Verifier
	var first Record
	if err := r.Lines(func(line []byte) error {
		rec, err := v.Line(line)
		if first.Seq == 0 {
			first = rec
		}
		return err
	}); err != nil || first.Seq != 3 || first.Prev == "" {
		t.Errorf("the first line is %+v, %v", first, err)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
}

// TestAFullDisk: failed writes are counted, and the next line has their number.
func TestAFullDisk(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, Options{Dir: dir})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	l.mu.Lock()
	good := l.f
	l.f = full
	l.mu.Unlock()
	l.Write(Record{Verb: "start", Outcome: OK})
	l.Write(Record{Verb: "start", Outcome: OK})
	l.mu.Lock()
	_ = full.Close()
	l.f = good
	l.mu.Unlock()
	l.Write(Record{Verb: "stop", Outcome: OK})
	if c := l.Counts(); c.Lost != 2 {
		t.Errorf("counts %+v", c)
	}
	b, _ := os.ReadFile(filepath.Join(dir, current))
	if !strings.Contains(string(b), `"verb":"stop","outcome":"ok","lost":2`) {
		t.Errorf("%s", b)
	}
	verified(t, dir)
}

// TestTexts: names with control characters, invalid UTF-8 or much text are bounded lines.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, Options{Dir: dir})
	l.Write(Record{Name: "a\nb\x00\xff\u2028", Error: strings.Repeat("\x01", 1<<20), Outcome: Failed})
	b, _ := os.ReadFile(filepath.Join(dir, current))
	if n := bytes.Count(b, []byte("\n")); n != 2 || len(b) > maxLine {
		t.Errorf("%d lines, %d bytes", n, len(b))
	}
	verified(t, dir)
}

// TestTheJournal: entries have their length, and a journal that does not read stops nobody.
func TestTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	s, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	write := journal(path)
	if err := write([]byte("a\nb")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1024)
	n, err := s.Read(b)
	if want := "PRIORITY=6\nSYSLOG_IDENTIFIER=longshore-audit\nMESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n"; err != nil || string(b[:n]) != want {
		t.Errorf("%q, %v", b[:n], err)
	}
	for i := 0; write([]byte("x")) == nil; i++ {
		if i > 1<<20 {
			t.Fatal("the queue of a socket has no end")
		}
	}
	if err := journal(path + "x")([]byte("a")); err == nil {
		t.Error("a journal that is absent takes lines")
	}
}

func FuzzVerifier(f *testing.F) {
	c := chain{}
	line, err := c.seal(&Record{Seq: 1, Outcome: OK})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimSuffix(line, []byte("\n")))
	f.Add([]byte(`{"hash":"","seq":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var v Verifier
		r, err := v.Line(line)
		if err == nil && (v.Seq() != r.Seq || r.Seq == 0 && r.Prev != "") {
			t.Errorf("%q: %+v", line, r)
		}
	})
}
