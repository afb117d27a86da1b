package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// The port forwarding protocol over SPDY, as of k8s.io/cri-streaming: each
// forwarded connection is a pair of streams, data and error, which carry the
// port and the same request ID. It can be tunnelled through a websocket.
const (
	protocolForward = "portforward.k8s.io"
	protocolTunnel  = "SPDY/3.1+" + protocolForward

	headerPort    = "port"
	headerRequest = "requestID"
	typeData      = "data"
)

// maxPairs bounds the connections of one session.
const maxPairs = 4096

// forward serves port forwarding in the protocol that the client speaks.
func (x *exchange) forward(ctx context.Context) {
	if !isWebsocket(x.r) {
		if _, err := httpstream.Handshake(x.r, x.w, []string{protocolForward}); err != nil {
			return // the client got the error
		}
		f := x.forwarding(ctx)
		if sc := spdy.NewResponseUpgrader().UpgradeResponse(x.w, x.r, f.take); sc != nil {
			f.serve(sc)
		}
		return
	}
	for _, p := range x.r.Header.Values("Sec-Websocket-Protocol") {
		if offers(p, protocolTunnel) {
			x.tunnel(ctx)
			return
		}
	}
	x.forwardChannels(ctx)
}

// tunnel serves SPDY inside a websocket.
func (x *exchange) tunnel(ctx context.Context) {
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			c.Protocol = []string{protocolTunnel}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			f := x.forwarding(ctx)
			if sc, err := spdy.NewServerConnection(ws, f.take); err == nil {
				f.serve(sc)
			}
		},
	}.ServeHTTP(x.w, x.r)
}

// forwarding is one session of port forwarding.
type forwarding struct {
	x   *exchange
	ctx context.Context //nolint:containedctx // the session's life
	end context.CancelCauseFunc

	mu    sync.Mutex // guards pairs
	sc    httpstream.Connection
	began chan struct{}
	pairs map[string]*pair // those begun and not ended
	all   sync.WaitGroup
}

// pair is one forwarded connection.
type pair struct {
	port        uint16
	data, fault httpstream.Stream
	answered    []<-chan struct{}
	timer       *time.Timer
}

func (x *exchange) forwarding(ctx context.Context) *forwarding {
	f := &forwarding{x: x, pairs: map[string]*pair{}, began: make(chan struct{})}
	f.ctx, f.end = context.WithCancelCause(ctx)
	return f
}

// serve forwards until the client has gone.
func (f *forwarding) serve(sc httpstream.Connection) {
	f.sc = sc
	close(f.began)
	select {
	case <-sc.CloseChan():
		f.end(errGone)
	case <-f.ctx.Done():
	}
	f.mu.Lock()
	for _, p := range f.pairs {
		p.timer.Stop()
	}
	f.mu.Unlock()
	f.x.conn.abort(context.Cause(f.ctx))
	_ = sc.Close()
	f.all.Wait()
}

// take is called for each stream that the client opens; an error refuses it.
func (f *forwarding) take(st httpstream.Stream, answered <-chan struct{}) error {
	port, id, data, err := parseStream(st.Headers(), st.Identifier())
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return errGone
	}
	p := f.pairs[id]
	if p == nil {
		if len(f.pairs) >= maxPairs {
			return fmt.Errorf("%d connections are forwarded already", len(f.pairs))
		}
		p = &pair{port: port}
		p.timer = time.AfterFunc(createTimeout, func() { f.drop(id, "the client opened one stream of two") })
		f.pairs[id] = p
	}
	mine := &p.fault
	if data {
		mine = &p.data
	}
	if *mine != nil || p.port != port {
		return fmt.Errorf("request %q has this stream already", id)
	}
	*mine = st
	p.answered = append(p.answered, answered)
	if p.data != nil && p.fault != nil && p.timer.Stop() {
		f.all.Go(func() {
			defer f.x.server.recover(f.ctx)
			defer f.drop(id, "")
			f.carry(p)
		})
	}
	return nil
}

// parseStream reads the purpose of a stream. Clients that send no request ID open the error stream
// first, and the data stream right after it.
func parseStream(h http.Header, stream uint32) (port uint16, id string, data bool, err error) {
	n, err := strconv.ParseUint(h.Get(headerPort), 10, 16)
	if err != nil || n == 0 {
		return 0, "", false, fmt.Errorf("stream with the port %q", h.Get(headerPort))
	}
	kind := h.Get(headerType)
	if kind != typeData && kind != typeError {
		return 0, "", false, fmt.Errorf("stream of the type %q", kind)
	}
	data = kind == typeData
	if id = h.Get(headerRequest); id == "" {
		if data {
			stream -= 2
		}
		id = "stream " + strconv.FormatUint(uint64(stream), 10)
	}
	return uint16(n), id, data, nil
}

// drop ends a pair, and tells the client why unless fault is "".
func (f *forwarding) drop(id, fault string) {
	f.mu.Lock()
	p := f.pairs[id]
	delete(f.pairs, id)
	f.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case <-f.began:
	case <-f.ctx.Done():
		return
	}
	for _, st := range []httpstream.Stream{p.data, p.fault} {
		if st != nil {
			if fault != "" && st == p.fault && usable(st) {
				_, _ = io.WriteString(st, fault)
			}
			_ = st.Close()
			_ = st.Reset()
			f.sc.RemoveStreams(st)
		}
	}
}

// carry forwards one connection until both directions have ended.
func (f *forwarding) carry(p *pair) {
	for _, answered := range p.answered {
		select {
		case <-answered:
		case <-f.ctx.Done():
			return
		}
	}
	if !usable(p.data) || !usable(p.fault) {
		return
	}
	target, err := f.x.server.o.Backend.Dial(f.ctx, f.x.req.ID, p.port)
	if err != nil {
		_, _ = fmt.Fprintf(p.fault, "error forwarding port %d to pod %s: %v", p.port, f.x.req.ID, err)
		return
	}
	join(f.ctx, target, &dataStream{Stream: p.data})
}

// dataStream distinguishes a half-close from a reset, which look the same to a reader.
type dataStream struct{ httpstream.Stream }

var errReset = errors.New("the client reset the stream")

// Write implements io.Writer. The library would continue to send to a client that has reset the
// stream.
func (d *dataStream) Write(b []byte) (int, error) {
	if d.reset() {
		return 0, errReset
	}
	return d.Stream.Write(b)
}

// Read implements io.Reader.
func (d *dataStream) Read(b []byte) (int, error) {
	n, err := d.Stream.Read(b)
	if errors.Is(err, io.EOF) && d.reset() {
		err = errReset
	}
	return n, err
}

func (d *dataStream) reset() bool {
	s, ok := d.Stream.(interface{ IsFinished() bool })
	return ok && s.IsFinished()
}

// CloseWrite ends our direction.
func (d *dataStream) CloseWrite() error { return d.Close() }

// halfCloser ends one direction of a connection.
type halfCloser interface{ CloseWrite() error }

// join copies between a connection and a client, each direction until its end,
// which is passed on. An error of either ends both.
func join(ctx context.Context, target net.Conn, client io.ReadWriter) {
	stop := context.AfterFunc(ctx, func() { _ = target.Close() })
	defer stop()
	defer func() { _ = target.Close() }()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := io.Copy(target, client)
		if h, ok := target.(halfCloser); ok && err == nil {
			err = h.CloseWrite()
		}
		if err != nil {
			_ = target.Close()
		}
	})
	_, err := io.Copy(client, target)
	if h, ok := client.(halfCloser); ok && err == nil {
		err = h.CloseWrite()
	}
	if err != nil {
		_ = target.Close()
		if s, ok := client.(interface{ Reset() error }); ok {
			_ = s.Reset() // wakes its reader
		}
	}
	wg.Wait()
}
