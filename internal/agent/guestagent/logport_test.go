package guestagent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLogPort: the host gets the lines from before it came, the next one those after it
// left, and the last lines come before the end.
func TestLogPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := NewLogPort(l)
	write := func(text string) {
		t.Helper()
		if n, err := io.WriteString(p, text); n != len(text) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	host := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	read := func(r *bufio.Reader, want string) {
		t.Helper()
		if got, err := r.ReadString('\n'); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	write("before\n")
	c, r := host()
	read(r, "before\n")
	write("with\n")
	read(r, "with\n")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	write("after\n") // fails on the first connection, which is gone
	c, r = host()
	read(r, "after\n")
	write("last\n")
	p.Close()
	if all, err := io.ReadAll(r); string(all) != "last\n" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestALogPortWithoutAReader: nobody waits for it, and the lines that were too many are
// counted.
func TestALogPortWithoutAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := NewLogPort(l)
	defer p.Close()
	for i := range keptLines + 5 {
		_, _ = fmt.Fprintf(p, "line %d\n", i)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for i := range keptLines {
		if got, err := r.ReadString('\n'); got != fmt.Sprintf("line %d\n", i) || err != nil {
			t.Fatalf("line %d is %q, %v", i, got, err)
		}
	}
	_, _ = io.WriteString(p, "again\n")
	if got, err := r.ReadString('\n'); !strings.Contains(got, `"count":5}`) || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := r.ReadString('\n'); got != "again\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// shortListener has no descriptors for the first connections.
type shortListener struct {
	net.Listener
	failures int
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestALogPortOutlastsAShortageOfDescriptors: the host gets the lines afterwards.
func TestALogPortOutlastsAShortageOfDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := NewLogPort(&shortListener{Listener: l, failures: 2})
	defer p.Close()
	if _, err := io.WriteString(p, "a line\n"); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got, err := bufio.NewReader(c).ReadString('\n'); got != "a line\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
