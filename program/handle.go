package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Handle is a right to use the board. Its methods may be called by several goroutines; two processes with the
// descriptor must not use it at the same time.
type Handle struct {
	conn *net.UnixConn

	mu   sync.Mutex // guards next; one request at a time
	next uint64
}

// Open makes a handle of the descriptor that a document's !client or !server gave. It takes the descriptor.
func Open(fd uintptr) (*Handle, error) { return OpenFile(os.NewFile(fd, "handle")) }

// OpenFile is Open for a file. It closes the file.
func OpenFile(f *os.File) (*Handle, error) {
	c, err := packets(f)
	if err != nil {
		return nil, err
	}
	return &Handle{conn: c}, nil
}

// packets makes a connection of a descriptor, which it takes.
func packets(f *os.File) (*net.UnixConn, error) {
	if f == nil {
		return nil, errors.New("board: this is no descriptor")
	}
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok || u.LocalAddr().Network() != "unixpacket" {
		_ = c.Close()
		return nil, errors.New("board: this descriptor is no handle")
	}
	return u, nil
}

// Close gives the handle back. Servers that it has started, and connections, stay.
func (h *Handle) Close() error { return h.conn.Close() }

// Conn is a connection between a client and a server, which nobody else has a part of.
type Conn struct {
	*net.UnixConn
	// Labels are those of both ends together. The keys that begin with server_ or client_ and are listed in the
	// guide were set by the agent.
	Labels map[string]string
}

// Connect connects to the server that matches the handle's labels and these. Of several it is the one that has had no
// new connection for the longest time. Without one it fails at once.
func (h *Handle) Connect(ctx context.Context, labels map[string]string) (*Conn, error) {
	f, got, err := h.ConnectFile(ctx, labels)
	if err != nil {
		return nil, err
	}
	return stream(f, got)
}

// ConnectFile is Connect with the descriptor itself as the result, a blocking one.
func (h *Handle) ConnectFile(ctx context.Context, labels map[string]string) (*os.File, map[string]string, error) {
	a, f, err := h.call(ctx, Request{Op: OpConnect, Labels: labels}, true)
	return f, a.Labels, err
}

func stream(f *os.File, labels map[string]string) (*Conn, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("board: it sent what is no connection")
	}
	return &Conn{UnixConn: u, Labels: labels}, nil
}

// Serve starts a server with the handle's labels and these.
func (h *Handle) Serve(ctx context.Context, labels map[string]string) (*Server, error) {
	f, err := h.ServeFile(ctx, labels)
	if err != nil {
		return nil, err
	}
	c, err := packets(f)
	if err != nil {
		return nil, err
	}
	return &Server{conn: c}, nil
}

// ServeFile is Serve with the descriptor itself as the result, a blocking one. Each message that it brings is an
// Arrival.
func (h *Handle) ServeFile(ctx context.Context, labels map[string]string) (*os.File, error) {
	_, f, err := h.call(ctx, Request{Op: OpServe, Labels: labels}, true)
	return f, err
}

// Narrow returns a handle with more labels and at most these rights, for a part of the program, or another one, with
// fewer rights. Without rights it has those of h. It ends with h's container.
func (h *Handle) Narrow(ctx context.Context, labels map[string]string, rights ...Right) (*Handle, error) {
	_, f, err := h.call(ctx, Request{Op: OpNarrow, Labels: labels, Rights: rights}, true)
	if err != nil {
		return nil, err
	}
	return OpenFile(f)
}

// Show returns the handle's labels and rights.
func (h *Handle) Show(ctx context.Context) (map[string]string, []Right, error) {
	a, _, err := h.call(ctx, Request{Op: OpShow}, false)
	return a.Labels, a.Rights, err
}

// call sends a request and waits for its answer. A request may be carried out even if its context has ended; its
// result is then closed.
func (h *Handle) call(ctx context.Context, r Request, brings bool) (a Answer, f *os.File, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return a, nil, err
	}
	h.next++
	r.ID = h.next
	b, err := Encode(r)
	if err != nil {
		return a, nil, err
	}
	_ = h.conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err != nil {
			err = errors.Join(ctx.Err(), err)
		}
	}()
	if _, err := h.conn.Write(b); err != nil {
		return a, nil, fmt.Errorf("board: %w", err)
	}
	for {
		a = Answer{}
		f, err = receive(h.conn, &a)
		switch {
		case err != nil:
			return a, nil, fmt.Errorf("board: %w", err)
		case a.ID != r.ID: // of a request that nobody waits for any more
			closeFile(f)
			continue
		case a.Error != nil:
			closeFile(f)
			return a, nil, a.Error
		case brings != (f != nil):
			closeFile(f)
			return a, nil, errors.New("board: the answer has not the descriptors that it must have")
		}
		return a, f, nil
	}
}

// Server is a server on the board. It is a net.Listener with connections of type *Conn.
type Server struct{ conn *net.UnixConn }

var _ net.Listener = (*Server)(nil)

// Accept implements net.Listener.
func (s *Server) Accept() (net.Conn, error) {
	c, err := s.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn waits for the next connection.
func (s *Server) AcceptConn() (*Conn, error) {
	f, labels, err := s.AcceptFile()
	if err != nil {
		return nil, err
	}
	return stream(f, labels)
}

// AcceptFile is AcceptConn with the descriptor itself as the result, a blocking one.
func (s *Server) AcceptFile() (*os.File, map[string]string, error) {
	var a Arrival
	f, err := receive(s.conn, &a)
	if err != nil {
		return nil, nil, fmt.Errorf("board: %w", err)
	}
	if f == nil {
		return nil, nil, errors.New("board: it sent no connection")
	}
	return f, a.Labels, nil
}

// Close implements net.Listener: no client reaches the server any more. Connections stay.
func (s *Server) Close() error { return s.conn.Close() }

// Addr implements net.Listener.
func (s *Server) Addr() net.Addr { return &net.UnixAddr{Name: "board", Net: "unix"} }

// receive receives one message and the descriptor that came with it, if any.
func receive(c *net.UnixConn, v any) (*os.File, error) {
	b, oob := make([]byte, MaxAnswer+1), make([]byte, syscall.CmsgSpace(4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	f, err := descriptor(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if flags&syscall.MSG_TRUNC != 0 || n > MaxAnswer {
		closeFile(f)
		return nil, errors.New("a message is too long")
	}
	if flags&syscall.MSG_CTRUNC != 0 {
		closeFile(f)
		return nil, fmt.Errorf("board: receive a descriptor: %w", syscall.EMFILE)
	}
	if err := json.Unmarshal(b[:n], v); err != nil {
		closeFile(f)
		return nil, err
	}
	return f, nil
}

// descriptor returns the one that a message has brought.
func descriptor(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil //nolint:nilnil // none came
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var f *os.File
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // it has another message
		}
		for _, fd := range fds {
			closeFile(f)
			f = os.NewFile(uintptr(fd), "connection")
		}
	}
	return f, nil
}

func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}
