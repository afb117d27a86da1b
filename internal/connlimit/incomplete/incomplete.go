// Package incomplete bounds the bytes of incomplete gRPC messages that a server keeps for a client. A
// server of gRPC bounds each message, and keeps the begun one of each stream of each connection. It is
// written in terms of HTTP/2's frames (RFC 9113, section 4.1) and of gRPC's length-prefixed messages.
package incomplete

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// perMessage is the overhead of such a message beside its bytes.
const perMessage = 256

var errLimit = errors.New("the client exceeds the limit of incomplete messages; its connection is closed")

// measured is a connection that measures messages as they come.
type measured struct {
	net.Conn
	limit  int64
	shared *atomic.Int64 // bytes that are kept for the client
	frames frames        // of one goroutine, which reads

	mu     sync.Mutex // guards kept, closed
	kept   int64      // of this connection
	closed bool
}

// Limit returns conn with a bound on the incomplete messages that come over it: a read fails when there
// are more than limit bytes. shared counts the bytes of all connections of one client.
func Limit(conn net.Conn, shared *atomic.Int64, limit int64) net.Conn {
	return &measured{Conn: conn, limit: limit, shared: shared, frames: frames{preface: len(preface)}}
}

// Read implements net.Conn. One goroutine reads.
func (m *measured) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if m.keep(m.frames.take(p[:n])) > m.limit {
		return 0, errLimit
	}
	return n, err
}

// keep adds to the bytes that are kept, and returns how many there are of the client.
func (m *measured) keep(bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0
	}
	m.kept += bytes
	return m.shared.Add(bytes)
}

// Close implements net.Conn.
func (m *measured) Close() error {
	m.mu.Lock()
	m.closed = true
	m.shared.Add(-m.kept)
	m.kept = 0
	m.mu.Unlock()
	return m.Conn.Close()
}

// preface is the first text of a client of HTTP/2.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// The used types and flags of HTTP/2's frames.
const (
	frameHead = 9

	frameData    = 0
	frameHeaders = 1
	frameReset   = 3

	flagEnd    = 1
	flagPadded = 8
)

// frames parses the frames of a client of gRPC as far as needed to find the incomplete messages.
type frames struct {
	preface int // bytes of it that are yet to come
	head    [frameHead]byte
	has     int     // bytes of the head
	left    int     // bytes of the frame after its head that are yet to come
	padding int     // bytes at the frame's end that are no data; -1 when the frame has yet to say
	message message // the message that the frame continues
	open    map[uint32]message
}

// message is an incomplete message: five bytes, the last four with its size, and its data.
type message struct {
	head       uint8
	size, kept uint32
}

// take parses received bytes, and returns the change of the buffered bytes.
func (f *frames) take(b []byte) (bytes int64) {
	for len(b) > 0 {
		var n int
		switch {
		case f.preface > 0:
			n = min(len(b), f.preface)
			f.preface -= n
		case f.has < frameHead:
			n = copy(f.head[f.has:], b)
			if f.has += n; f.has == frameHead {
				bytes += f.begin()
			}
		default:
			n = min(len(b), f.left)
			bytes += f.payload(b[:n])
			f.left -= n
		}
		b = b[n:]
		if f.has == frameHead && f.left == 0 {
			bytes += f.end()
			f.has = 0
		}
	}
	return bytes
}

func (f *frames) kind() byte     { return f.head[3] }
func (f *frames) flags() byte    { return f.head[4] }
func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.head[5:]) &^ (1 << 31) }

// begin begins a frame after its head.
func (f *frames) begin() int64 {
	f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	f.padding = 0
	switch {
	case f.kind() == frameData:
		f.message = f.open[f.stream()]
		if f.flags()&flagPadded != 0 {
			f.padding = -1
		}
	case f.kind() == frameReset, f.kind() == frameHeaders && f.flags()&flagEnd != 0:
		return f.drop()
	}
	return 0
}

// drop forgets the stream's incomplete message.
func (f *frames) drop() int64 {
	m, ok := f.open[f.stream()]
	if !ok {
		return 0
	}
	delete(f.open, f.stream())
	return -int64(m.kept) - perMessage
}

// payload takes a part of a frame after its head.
func (f *frames) payload(b []byte) (bytes int64) {
	if f.kind() != frameData {
		return 0
	}
	left := f.left
	if f.padding < 0 && len(b) > 0 {
		f.padding, b, left = int(b[0]), b[1:], left-1
	}
	b = b[:min(len(b), max(0, left-f.padding))]
	for m := &f.message; len(b) > 0; {
		if m.head < 5 {
			if m.head > 0 {
				m.size = m.size<<8 | uint32(b[0])
			}
			m.head, b = m.head+1, b[1:]
		} else {
			n := min(len(b), int(m.size-m.kept))
			m.kept, b, bytes = m.kept+uint32(n), b[n:], bytes+int64(n)
		}
		if m.head == 5 && m.kept == m.size { // it is complete
			bytes -= int64(m.kept)
			*m = message{}
		}
	}
	return bytes
}

// end ends a frame.
func (f *frames) end() (bytes int64) {
	if f.kind() != frameData {
		return 0
	}
	_, was := f.open[f.stream()]
	is := f.message.head > 0
	if f.flags()&flagEnd != 0 { // an incomplete message will never be completed
		bytes, is = -int64(f.message.kept), false
	}
	switch {
	case is:
		if f.open == nil {
			f.open = map[uint32]message{}
		}
		f.open[f.stream()] = f.message
		if !was {
			bytes += perMessage
		}
	case was:
		delete(f.open, f.stream())
		bytes -= perMessage
		if len(f.open) == 0 {
			f.open = nil
		}
	}
	f.message = message{}
	return bytes
}
