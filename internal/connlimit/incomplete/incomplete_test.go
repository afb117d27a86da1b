package incomplete

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// frame is one of HTTP/2, with so many bytes of padding if that is not zero.
func frame(kind, flags byte, stream byte, padding int, payload ...byte) []byte {
	if padding > 0 {
		flags |= flagPadded
		payload = append(append([]byte{byte(padding)}, payload...), make([]byte, padding)...)
	}
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, stream}, payload...)
}

// begun is the head of a message of a size, and a part of it.
func begun(size, part int) []byte {
	return append([]byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, make([]byte, part)...)
}

// TestWhatIsKept: only incomplete messages count, until the rest comes, or nothing more will.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	f := frames{preface: len(preface)}
	kept := int64(0)
	for _, c := range []struct {
		what string
		sent []byte
		want int64
	}{
		{"the preface", []byte(preface), 0},
		{"settings", frame(4, 0, 0, 0), 0},
		{"a head", frame(frameHeaders, 4, 1, 0, 1, 2, 3), 0},
		{"a whole message", frame(frameData, 0, 1, 0, begun(10, 10)...), 0},
		{"an empty one", frame(frameData, 0, 1, 0, begun(0, 0)...), 0},
		{"one and a part of the next", frame(frameData, 0, 1, 0, append(begun(10, 10), begun(1000, 100)...)...), 100 + perMessage},
		{"padding is not kept", frame(frameData, 0, 1, 50, make([]byte, 100)...), 200 + perMessage},
		{"a part of a head", frame(frameData, 0, 3, 0, 0, 0), 200 + 2*perMessage},
		{"the rest of it", frame(frameData, 0, 3, 0, 0, 1, 0, 7, 7), 202 + 2*perMessage},
		{"the rest of the first one", frame(frameData, 0, 1, 0, make([]byte, 800)...), 2 + perMessage},
		{"the end of a stream in the middle", frame(frameData, flagEnd, 3, 0, 1, 2, 3), 0},
		{"another part", frame(frameData, 0, 5, 0, begun(1<<20, 10)...), 10 + perMessage},
		{"the end of another stream", frame(frameReset, 0, 7, 0, 0, 0, 0, 0), 10 + perMessage},
		{"its own end", frame(frameReset, 0, 5, 0, 0, 0, 0, 0), 0},
		{"another part again", frame(frameData, 0, 9, 0, begun(1<<20, 10)...), 10 + perMessage},
		{"its end by headers", frame(frameHeaders, flagEnd, 9, 0, 1), 0},
	} {
		if kept += f.take(c.sent); kept != c.want {
			t.Errorf("%s: %d bytes are kept, want %d", c.what, kept, c.want)
		}
	}
	if len(f.open) > 0 {
		t.Errorf("left: %v", f.open)
	}
}

// TestANodesMessagesAreBounded over all of its connections; closing one frees the bytes that were
// kept for it.
func TestANodesMessagesAreBounded(t *testing.T) {
	t.Parallel()
	node := new(atomic.Int64)
	open := func() (client, m net.Conn) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		return client, Limit(server, node, 16<<20)
	}
	// part sends a part of a message, and returns how its reading ended.
	part := func(client, m net.Conn, first bool, stream byte) error {
		sent := frame(frameData, 0, stream, 0, begun(4<<20, 3<<20)...)
		if first {
			sent = append([]byte(preface), sent...)
		}
		go func() { _, _ = client.Write(sent) }()
		_, err := io.ReadFull(m, make([]byte, len(sent)))
		return err
	}
	one, a := open()
	two, b := open()
	for i, err := range []error{part(one, a, true, 1), part(two, b, true, 1), part(one, a, false, 3), part(two, b, false, 3), part(one, a, false, 5)} {
		if err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	if err := part(two, b, false, 5); !errors.Is(err, errLimit) {
		t.Errorf("more than is kept: %v", err)
	}
	_ = b.Close()
	if got := node.Load(); got != 3*(3<<20+perMessage) {
		t.Errorf("%d bytes are kept after one connection is closed", got)
	}
	_ = a.Close()
	_ = a.Close()
	if got := node.Load(); got != 0 {
		t.Errorf("%d bytes are kept of none", got)
	}
}

// FuzzFrames: for any input, in any parts, the same bytes are kept, never fewer than none, and the
// same streams are open.
func FuzzFrames(f *testing.F) {
	f.Add(append(frame(frameData, 0, 1, 3, begun(100, 20)...), frame(frameReset, 0, 1, 0)...), 3)
	f.Add(append(frame(frameData, flagEnd, 1, 0, begun(1, 1)...), frame(frameHeaders, flagEnd, 1, 0, 1)...), 1)
	f.Fuzz(func(t *testing.T, sent []byte, step int) {
		var whole, parts frames
		kept := whole.take(sent)
		sum := int64(0)
		for rest := sent; len(rest) > 0; {
			n := min(max(step, 1), len(rest))
			if sum += parts.take(rest[:n]); sum < 0 {
				t.Fatalf("%d bytes are kept", sum)
			}
			rest = rest[n:]
		}
		if sum != kept || len(parts.open) != len(whole.open) || !bytes.Equal(parts.head[:parts.has], whole.head[:whole.has]) {
			t.Fatalf("in parts %d bytes are kept, at once %d", sum, kept)
		}
		if kept > int64(len(sent))*(1+perMessage) {
			t.Fatalf("%d bytes are kept of %d", kept, len(sent))
		}
	})
}
