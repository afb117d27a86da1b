package kata

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"testing"
)

// message is a ttrpc message of n bytes behind its header.
func message(n int) []byte {
	b := make([]byte, headerLength+n)
	binary.BigEndian.PutUint32(b, uint32(n))
	return b
}

// TestWaitsForAnswers: wait ignores a request that has only begun, and one on a closed connection.
func TestWaitsForAnswers(t *testing.T) {
	var open answers
	ours, theirs := net.Pipe()
	c := &answeredConn{Conn: ours, answers: &open}
	open.add(0, 1) // as the listener does
	over, cancel := context.WithCancel(t.Context())
	cancel()
	step := func(what string, f func(), want error) {
		t.Helper()
		f()
		if err := open.wait(over); !errors.Is(err, want) {
			t.Errorf("%s: wait = %v, want %v", what, err, want)
		}
	}
	receive := func(b []byte) func() {
		return func() {
			go func() { _, _ = theirs.Write(b) }()
			for got := 0; got < len(b); {
				n, err := c.Read(make([]byte, 100))
				if err != nil {
					t.Fatal(err)
				}
				got += n
			}
		}
	}
	send := func(b []byte) func() {
		return func() {
			written := make(chan error, 1)
			go func() {
				_, err := c.Write(b)
				written <- err
			}()
			for got := 0; got < len(b); {
				n, err := theirs.Read(make([]byte, 100))
				if err != nil {
					t.Fatal(err)
				}
				got += n
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
		}
	}
	step("nothing", func() {}, nil)
	step("half a request", receive(message(20)[:15]), nil)
	step("its other half", receive(message(20)[15:]), context.Canceled)
	step("another request", receive(message(0)), context.Canceled)
	waited := make(chan error, 1)
	go func() { waited <- open.wait(t.Context()) }()
	step("the first answer", send(message(3)), context.Canceled)
	send(message(300))()
	if err := <-waited; err != nil {
		t.Errorf("wait = %v", err)
	}
	step("a third request", receive(message(1)), context.Canceled)
	if err := open.left(over); !errors.Is(err, context.Canceled) {
		t.Errorf("left = %v before the end", err)
	}
	step("closed", func() { _ = c.Close() }, nil)
	step("closed twice", func() { _ = c.Close() }, nil)
	if err := open.left(over); err != nil {
		t.Errorf("left = %v at the end", err)
	}
}

// FuzzMessages: the count does not depend on how the bytes arrive.
func FuzzMessages(f *testing.F) {
	f.Add(append(message(5), message(0)...), uint8(3))
	f.Add(message(300)[:20], uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var whole, parts messages
		want, got := whole.feed(b), 0
		for rest := b; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			got += parts.feed(rest[:n])
			rest = rest[n:]
		}
		if got != want || whole.left != parts.left || whole.have != parts.have {
			t.Errorf("in parts of %d: %d messages, want %d", int(size)+1, got, want)
		}
		if want > len(b)/headerLength {
			t.Errorf("%d messages in %d bytes", want, len(b))
		}
	})
}
