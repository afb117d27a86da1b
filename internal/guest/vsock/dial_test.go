package vsock

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDial connects to a unix socket, as TestListener listens on one: test/kata/TestInAGuest
// does it on vsock.
func TestDial(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	to := Addr{CID: 3, Port: 1024}
	if _, err := dial(t.Context(), unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, to); !errors.Is(err, unix.ENOENT) {
		t.Errorf("nobody listens: %v", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := dial(t.Context(), unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got := c.RemoteAddr().String(); got != "3:1024" {
		t.Errorf("address %q", got)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close() }()
	go func() { _, _ = io.WriteString(c, "hello\n") }()
	if line, err := bufio.NewReader(peer).ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

// TestDialHybrid: a monitor's answers, and their results.
func TestDialHybrid(t *testing.T) {
	for name, c := range map[string]struct {
		answer, want string // want: of the error, unless it is connected
	}{
		"connected":       {answer: "OK 1073741824\nfirst bytes"},
		"refused":         {want: "connection refused"},
		"another program": {answer: "HTTP/1.1 400 Bad Request\r\n", want: `the answer is "HTTP/1.1 400 Bad Request\r"`},
		"endless":         {answer: strings.Repeat("O", 1000), want: "the answer begins with"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			asked := make(chan string, 1)
			go func() {
				peer, err := l.Accept()
				if err != nil {
					return
				}
				line, _ := bufio.NewReader(peer).ReadString('\n')
				asked <- line
				_, _ = io.WriteString(peer, c.answer)
				_ = peer.Close()
			}()
			conn, err := DialHybrid(t.Context(), path, 1024)
			if got := <-asked; got != "CONNECT 1024\n" {
				t.Errorf("it asks %q", got)
			}
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if rest, err := io.ReadAll(conn); string(rest) != "first bytes" || err != nil {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "socket")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("it takes too long")
		go func() {
			peer, err := l.Accept()
			if err == nil {
				defer func() { _ = peer.Close() }()
				_, _ = bufio.NewReader(peer).ReadString('\n')
			}
			cancel(why)
			<-t.Context().Done()
		}()
		if _, err := DialHybrid(ctx, path, 1024); !errors.Is(err, why) {
			t.Errorf("error %v, want %v", err, why)
		}
	})
}
