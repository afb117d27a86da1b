package names

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// TestRetire: a process that retires answers a question that it has forwarded, and then ends.
func TestRetire(t *testing.T) {
	s := newServer(t)
	upstream := packets(t)
	defer func() { _ = upstream.Close() }()
	c := s.sandbox(request{Sandbox: "a", Upstream: []netip.AddrPort{netip.MustParseAddrPort(upstream.LocalAddr().String())}})
	asks, err := net.Dial("udp", c.udp) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = asks.Close() }()
	if _, err := asks.Write(question(t, "far.example.", dnsmessage.TypeA, false)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxUDP)
	n, from, err := upstream.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	s.must(request{Op: opRetire})
	select {
	case <-s.p.ended:
		t.Fatal("the process ended before its last answer")
	default:
	}
	buf[2] |= 0x80 // the question is its own answer
	if _, err := upstream.WriteTo(buf[:n], from); err != nil {
		t.Fatal(err)
	}
	_ = asks.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := asks.Read(buf); err != nil {
		t.Errorf("the last answer: %v", err)
	}
	<-s.p.ended
}

// TestNextDirectory: replace moves the files of the next process to those of its predecessor, and dropNext removes them.
func TestNextDirectory(t *testing.T) {
	d := directory(filepath.Join(t.TempDir(), "names"))
	files := func(d directory, content string) {
		for _, path := range []string{d.socket(), d.pidFile(), d.log()} {
			if err := os.MkdirAll(string(d), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	files(d, "before")
	files(d.next(), "unused")
	if err := d.dropNext(); err != nil {
		t.Fatal(err)
	}
	files(d.next(), "next")
	if err := d.replace(d.next()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{d.socket(), d.pidFile(), d.log()} {
		if b, err := os.ReadFile(path); err != nil || string(b) != "next" {
			t.Errorf("%s has %q, %v", path, b, err)
		}
	}
	if _, err := os.Stat(string(d.next())); !os.IsNotExist(err) {
		t.Errorf("the next directory stays: %v", err)
	}
}
