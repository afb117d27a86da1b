package cri

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// streams is one session as a client has it, over SPDY or websockets.
type streams struct {
	stdout, stderr, fault *gatherer
	write                 func([]byte) error // to stdin
	closeStdin            func() error
	resize                func(cols, rows int) error
	cut                   func() // ends the connection at once
	done                  chan struct{}
}

// gatherer keeps arriving data; a full one takes no more, which makes a stuck client.
type gatherer struct {
	mu   sync.Mutex
	data bytes.Buffer
	stop chan struct{}
}

func (g *gatherer) Write(b []byte) (int, error) {
	if g.stop != nil {
		<-g.stop
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.data.Write(b)
}

func (g *gatherer) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.data.String()
}

// want is a client's request.
type want struct {
	stdin, tty bool
	noStderr   bool
	stuck      chan struct{} // stdout is not taken until it is closed
	websocket  string        // the protocol; "" is SPDY
	fuse       *fuse         // cuts the connection; nil does not
}

// fuse cuts a connection after so many bytes, both ways together, wherever in the
// protocol that is, or when it is blown before. One that is held takes no byte more
// off the connection.
type fuse struct {
	net.Conn
	mu    sync.Mutex
	left  int
	once  sync.Once
	blown chan struct{}
	held  atomic.Bool
}

func newFuse(bytes int) *fuse { return &fuse{left: bytes, blown: make(chan struct{})} }

// Close implements net.Conn.
func (f *fuse) Close() error {
	f.blow()
	return nil
}

// dial connects to a URL's host, through the fuse if there is one.
func (f *fuse) dial(u *url.URL) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", u.Host, roottest.Patience())
	if err != nil || f == nil {
		return conn, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Conn = conn; f.left <= 0 {
		f.blowLocked()
	}
	return f, nil
}

func (f *fuse) blow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blowLocked()
}

func (f *fuse) blowLocked() {
	f.left = 0
	f.once.Do(func() { close(f.blown) })
	if f.Conn != nil {
		_ = f.Conn.Close()
	}
}

func (f *fuse) Read(b []byte) (int, error) {
	if f.held.Load() {
		<-f.blown
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(b)
	return f.burn(n), err
}

func (f *fuse) Write(b []byte) (int, error) {
	f.mu.Lock()
	k := min(len(b), f.left)
	f.mu.Unlock()
	n, err := f.Conn.Write(b[:k])
	if f.burn(n); err == nil && k < len(b) {
		err = net.ErrClosed
	}
	return n, err
}

func (f *fuse) burn(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left -= n; f.left <= 0 {
		f.blowLocked()
	}
	return n
}

// status is outcome, and wants the session to end.
func (s *streams) status(t *testing.T) (int, string) {
	t.Helper()
	code, text := s.outcome()
	if text == unended {
		t.Fatal(text)
	}
	return code, text
}

const unended = "the session did not end"

// outcome waits for the end and returns the exit code, -1 with the message of a
// failure that is none.
func (s *streams) outcome() (int, string) {
	timer := time.NewTimer(roottest.Patience())
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		return -1, unended
	}
	var st struct {
		Status, Message, Reason string
		Details                 struct {
			Causes []struct{ Reason, Message string }
		}
	}
	if err := json.Unmarshal([]byte(s.fault.String()), &st); err != nil {
		return -1, fmt.Sprintf("no status (%v): %q", err, s.fault.String())
	}
	switch {
	case st.Status == "Success":
		return 0, ""
	case st.Reason == "NonZeroExitCode" && len(st.Details.Causes) == 1:
		code, err := strconv.Atoi(st.Details.Causes[0].Message)
		if err != nil {
			return -1, st.Message
		}
		return code, st.Message
	default:
		return -1, st.Message
	}
}

func (n streamNode) exec(t *testing.T, id string, w want, args ...string) *streams {
	t.Helper()
	s, err := n.tryExec(t.Context(), id, w, args...)
	if err != nil {
		t.Fatalf("exec %q: %v", args, err)
	}
	t.Cleanup(s.cut)
	return s
}

func (n streamNode) tryExec(ctx context.Context, id string, w want, args ...string) (*streams, error) {
	r, err := n.CRI.Exec(ctx, &v1.ExecRequest{ContainerId: id, Cmd: args, Stdin: w.stdin, Stdout: true, Stderr: !w.tty && !w.noStderr, Tty: w.tty})
	if err != nil {
		return nil, err
	}
	return open(r.GetUrl(), w)
}

func (n streamNode) attach(t *testing.T, id string, w want) *streams {
	t.Helper()
	s, err := n.tryAttach(t.Context(), id, w)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(s.cut)
	return s
}

func (n streamNode) tryAttach(ctx context.Context, id string, w want) (*streams, error) {
	r, err := n.CRI.Attach(ctx, &v1.AttachRequest{ContainerId: id, Stdin: w.stdin, Stdout: true, Stderr: !w.tty && !w.noStderr, Tty: w.tty})
	if err != nil {
		return nil, err
	}
	return open(r.GetUrl(), w)
}

// streamNode asks a node for streams.
type streamNode struct{ *nodetest.Node }

// open joins a session.
func open(address string, w want) (*streams, error) {
	s := &streams{stdout: &gatherer{stop: w.stuck}, stderr: &gatherer{}, fault: &gatherer{}, done: make(chan struct{})}
	if w.websocket != "" {
		return s, s.overWebsocket(address, w)
	}
	return s, s.overSPDY(address, w)
}

// upgrade opens a SPDY connection.
func upgrade(address, protocol string, f *fuse) (net.Conn, httpstream.Connection, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, nil, err
	}
	conn, err := f.dial(u)
	if err != nil {
		return nil, nil, err
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", u.Path, u.Host, protocol); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(oneByte{conn}, 16), nil)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, nil, errors.Join(fmt.Errorf("answered %s", resp.Status), conn.Close())
	}
	sc, err := spdy.NewClientConnection(conn)
	return conn, sc, err
}

// oneByte keeps a buffered reader from reading ahead.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 1)]) }

func (s *streams) overSPDY(address string, w want) error {
	conn, sc, err := upgrade(address, "v4.channel.k8s.io", w.fuse)
	if err != nil {
		return err
	}
	s.cut = sync.OnceFunc(func() {
		_ = conn.Close()
		_ = sc.Close()
	})
	var wg sync.WaitGroup
	stream := func(name string, to io.Writer) httpstream.Stream {
		if err != nil {
			return nil
		}
		var st httpstream.Stream
		if st, err = sc.CreateStream(http.Header{"Streamtype": {name}}); err != nil {
			return nil
		}
		if to != nil {
			wg.Go(func() { _, _ = io.Copy(to, st) })
		}
		return st
	}
	stream("error", s.fault)
	var stdin, resize httpstream.Stream
	if w.stdin {
		stdin = stream("stdin", nil)
	}
	stream("stdout", s.stdout)
	if !w.tty && !w.noStderr {
		stream("stderr", s.stderr)
	}
	if w.tty {
		resize = stream("resize", nil)
	}
	if err != nil {
		s.cut()
		return err
	}
	s.write = func(b []byte) error {
		_, err := stdin.Write(b)
		return err
	}
	s.closeStdin = func() error {
		// The library writes the end, and then its empty data: by then the process may have
		// answered, and the session be over.
		if err := stdin.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	s.resize = func(cols, rows int) error {
		return json.NewEncoder(resize).Encode(map[string]int{"Width": cols, "Height": rows})
	}
	go func() {
		wg.Wait()
		s.cut()
		close(s.done)
	}()
	return nil
}

func (s *streams) overWebsocket(address string, w want) error {
	ws, err := dialWebsocket(address, w.websocket, w.fuse)
	if err != nil {
		return err
	}
	s.cut = sync.OnceFunc(func() { _ = ws.Close() })
	send := func(channel byte, b []byte) error {
		return websocket.Message.Send(ws, append([]byte{channel}, b...))
	}
	s.write = func(b []byte) error { return send(0, b) }
	s.closeStdin = func() error { return send(255, []byte{0}) }
	s.resize = func(cols, rows int) error { return send(4, fmt.Appendf(nil, `{"Width":%d,"Height":%d}`, cols, rows)) }
	go func() {
		defer close(s.done)
		defer s.cut()
		to := []io.Writer{nil, s.stdout, s.stderr, s.fault}
		for {
			var msg []byte
			if websocket.Message.Receive(ws, &msg) != nil {
				return
			}
			if len(msg) > 1 && int(msg[0]) < len(to) && to[msg[0]] != nil {
				_, _ = to[msg[0]].Write(msg[1:])
			}
		}
	}()
	return nil
}

func dialWebsocket(address, protocol string, f *fuse) (*websocket.Conn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	u.Scheme = "ws"
	cfg, err := websocket.NewConfig(u.String(), "http://localhost")
	if err != nil {
		return nil, err
	}
	cfg.Protocol = []string{protocol}
	conn, err := f.dial(cfg.Location)
	if err != nil {
		return nil, err
	}
	ws, err := websocket.NewClient(cfg, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ws.PayloadType = websocket.BinaryFrame
	return ws, nil
}
