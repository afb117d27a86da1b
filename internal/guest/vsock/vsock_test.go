package vsock

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestListener drives the listener on a unix socket: a test's machine has nobody at the
// other end of vsock. test/kata/TestInAGuest does it on vsock.
func TestListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := listen(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, Addr{CID: Any, Port: 1024})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Addr().String(); got != "-1:1024" {
		t.Errorf("address %q", got)
	}
	client := make(chan error, 1)
	go func() {
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = io.Copy(c, c) // until the server ends it
		}
		client <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("echo")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "echo" {
		t.Errorf("read %q, %v", b, err)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := c.Read(b); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read at the deadline: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-client; err != nil {
		t.Errorf("client: %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
