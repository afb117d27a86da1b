package dockerhttp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// Stream answers with one JSON document after the other. Each is sent at once, in chunks, which some clients demand.
type Stream struct {
	w  http.ResponseWriter
	mu sync.Mutex // serializes writing, and guards began
	// began says that the header is sent.
	began bool
}

// NewStream returns a Stream that has sent nothing yet.
func NewStream(w http.ResponseWriter) *Stream { return &Stream{w: w} }

// Start sends the header.
func (s *Stream) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start()
}

// start sends the header, once. Preconditions: mu is held.
func (s *Stream) start() error {
	if s.began {
		return nil
	}
	s.began = true
	s.w.Header().Set("Content-Type", "application/json")
	s.w.WriteHeader(http.StatusOK)
	return http.NewResponseController(s.w).Flush()
}

// Began reports whether something was sent: then an error can no longer be the answer.
func (s *Stream) Began() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

// Send sends a document. It may be called from several goroutines.
func (s *Stream) Send(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		return err
	}
	e := json.NewEncoder(crlf{s.w})
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// Document returns the bytes that Send would send, for SendDocument.
func Document(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(crlf{&b})
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// SendDocument sends a document that several streams share.
func (s *Stream) SendDocument(doc []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		return err
	}
	if _, err := s.w.Write(doc); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// Fail sends an error in the form of streams that have begun.
func (s *Stream) Fail(err error) {
	text := Text(err)
	_ = s.Send(map[string]any{"errorDetail": errorBody{text}, "error": text}) // the client may be gone
}

// crlf writes a carriage return before the newline at the end of each document.
type crlf struct{ io.Writer }

func (w crlf) Write(b []byte) (int, error) {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		_, err := w.Writer.Write(append(b[:n-1:n-1], '\r', '\n'))
		return n, err
	}
	return w.Writer.Write(b)
}

// The media types of hijacked connections and logs.
const (
	RawStream         = "application/vnd.docker.raw-stream"
	MultiplexedStream = "application/vnd.docker.multiplexed-stream"
)

// multiplexedSince is the version from that on streams with frames have a type of their own.
const multiplexedSince = "1.42"

// MediaType returns the type of the stream of a process with or without a terminal.
func (r *Request) MediaType(tty bool) string {
	if tty || r.API.Before(multiplexedSince) {
		return RawStream
	}
	return MultiplexedStream
}

// maxDropped is the size of the largest body that Hijack drops.
const maxDropped = 1 << 20

// Conn is a hijacked connection.
type Conn struct {
	net.Conn
	in  io.Reader
	ctx context.Context //nolint:containedctx // it is the connection's, as that of a request
	// framed is the websocket on the connection; nil is none.
	framed *framed
}

// Context returns a context that ends with the server. The request's ends with the client's half of the connection if the client
// closes that before the connection is hijacked.
func (c *Conn) Context() context.Context { return c.ctx }

// Read reads the bytes behind the request.
func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write sends output.
func (c *Conn) Write(b []byte) (int, error) {
	if c.framed != nil {
		return c.framed.Write(b)
	}
	return c.Conn.Write(b)
}

// Close closes the connection.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	if c.framed != nil {
		c.framed.end()
	}
	return err
}

// CloseWrite ends the output, while input may still come.
func (c *Conn) CloseWrite() error {
	if c.framed != nil {
		return c.framed.WriteClose(normalClosure)
	}
	for conn := c.Conn; conn != nil; conn = inner(conn) {
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			return half.CloseWrite()
		}
	}
	return nil
}

// inner returns the connection below one with TLS or with a limit; nil if there is none.
func inner(c net.Conn) net.Conn {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok {
		return outer.NetConn()
	}
	return nil
}

// innermost returns the connection of the kernel.
func innermost(c net.Conn) net.Conn {
	for next := inner(c); next != nil; next = inner(c) {
		c = next
	}
	return c
}

// Hijack takes the connection from the server and sends the header: 101 to clients that ask for an upgrade, otherwise 200. After it no
// error can be answered. A body of a known length that nobody has read is dropped: dockerode sends the query's values once more in it,
// and they are no input of the process.
func (r *Request) Hijack(w http.ResponseWriter, media string) (*Conn, error) {
	if r.ContentLength > maxDropped {
		return nil, invalid.Errorf("a request for a raw stream has a body of at most %d bytes, not %d", maxDropped, r.ContentLength)
	}
	if r.ContentLength > 0 {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, invalid.Errorf("read the body of the request: %v", err)
		}
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	head := "HTTP/1.1 200 OK\r\nContent-Type: " + RawStream + "\r\n"
	if r.Header.Get("Upgrade") != "" {
		head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: " + media + "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
	}
	for _, key := range []string{"Api-Version", "Docker-Experimental", "Ostype", "Server"} {
		if v := w.Header().Get(key); v != "" {
			head += key + ": " + v + "\r\n"
		}
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	headRead(conn)
	// Only the bytes that the server has read: at the end of the client's input, its reader would cancel the request's context.
	early, err := buf.Peek(buf.Reader.Buffered())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Conn{Conn: conn, in: io.MultiReader(bytes.NewReader(early), conn), ctx: serverContext(r)}, nil
}

// headPatience is how long headRead waits.
const headPatience = time.Second

// headRead waits until the client has read the header from a Unix socket. docker-py reads the header through a buffer and the stream
// directly from the socket, so it loses output that arrives together with the header. The kernel counts the bytes that nobody has read
// but does not notify of them.
func headRead(conn net.Conn) {
	sys, ok := innermost(conn).(*net.UnixConn)
	if !ok {
		return
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return
	}
	pause := 20 * time.Microsecond
	next := time.NewTimer(pause)
	defer next.Stop()
	for began := time.Now(); time.Since(began) < headPatience; next.Reset(pause) {
		unread := 0
		var ierr error
		err := raw.Control(func(fd uintptr) { unread, ierr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || ierr != nil || unread == 0 {
			return
		}
		<-next.C
		pause = min(2*pause, 10*time.Millisecond)
	}
}

// The streams of a frame.
const (
	Stdout      byte = 1
	Stderr      byte = 2
	SystemError byte = 3 // the client returns its content as an error
)

// frameHead is the size of a frame's head: the stream, three zero bytes and the length.
const frameHead = 8

// Frames writes output in frames, each with the number of its stream. With Raw, the output of a terminal, it writes no heads.
type Frames struct {
	To  io.Writer
	Raw bool
	// Flush, if set, is called after each frame.
	Flush func() error

	mu sync.Mutex // serializes writing
}

// Write writes data as one frame. It may be called from several goroutines.
func (f *Frames) Write(stream byte, data []byte) error {
	if len(data) == 0 {
		return nil // clients take an empty frame for the end
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := data
	if !f.Raw {
		out = Frame(stream, data)
	}
	if _, err := f.To.Write(out); err != nil {
		return err
	}
	if f.Flush != nil {
		return f.Flush()
	}
	return nil
}

// Frame returns data as a frame.
func Frame(stream byte, data []byte) []byte {
	out := make([]byte, frameHead, frameHead+len(data))
	out[0] = stream
	binary.BigEndian.PutUint32(out[4:], uint32(len(data)))
	return append(out, data...)
}

// leftInterval is the time between two looks for the client's end.
const leftInterval = time.Second

// Left returns a channel that is closed soon after the client has closed its connection, and not only its half of it. It needs no
// reading, so that the client's input stays for the process. It is never closed for TCP, which does not tell the two.
func (c *Conn) Left(ctx context.Context) <-chan struct{} {
	left := make(chan struct{})
	found := func() { close(left) }
	if c.framed != nil { // a message tells it too
		left, found = c.framed.left, c.framed.gone
	}
	sys, ok := innermost(c.Conn).(syscall.Conn)
	if !ok {
		return left
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return left
	}
	go func() {
		tick := time.NewTicker(leftInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			gone := false
			err := raw.Control(func(fd uintptr) {
				fds := []unix.PollFd{{Fd: int32(fd)}}
				n, perr := unix.Poll(fds, 0)
				gone = perr == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
			})
			if err != nil || gone {
				found()
				return
			}
		}
	}()
	return left
}
