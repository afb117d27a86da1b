package dockerhttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/net/websocket"

	"github.com/longshore/longshore/internal/invalid"
)

// normalClosure is the status of a websocket that ends with its stream.
const normalClosure = 1000

// binarySince is the version from that on the frames of a websocket are binary.
const binarySince = "1.28"

// WantsWebsocket returns InvalidArgument for a request that does not ask for a websocket.
func (r *Request) WantsWebsocket() error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || !strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade") ||
		r.Header.Get("Sec-Websocket-Key") == "" || r.Header.Get("Sec-Websocket-Version") != "13" {
		return invalid.Errorf("this request needs the headers of a websocket of version 13")
	}
	return nil
}

// Websocket takes the connection from the server and answers with a websocket. Its messages are a raw stream in both directions. After
// that no error can be answered. WantsWebsocket must have returned nil.
func (r *Request) Websocket(w http.ResponseWriter) (*Conn, error) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	opened, closed, ended := make(chan *websocket.Conn), make(chan struct{}), make(chan struct{})
	s := websocket.Server{
		Handshake: func(*websocket.Config, *http.Request) error { return nil }, // the origin was checked
		Handler: func(ws *websocket.Conn) {
			opened <- ws
			<-closed
		},
	}
	go func() {
		defer close(ended)
		s.ServeHTTP(taken{w, conn, buf}, r.Request)
	}()
	select {
	case <-ended:
		return nil, errors.Join(invalid.Errorf("the handshake of the websocket has failed"), conn.Close())
	case ws := <-opened:
		if !r.API.Before(binarySince) {
			ws.PayloadType = websocket.BinaryFrame
		}
		f := &framed{Conn: ws, left: make(chan struct{}), closed: closed}
		return &Conn{Conn: conn, in: f, ctx: serverContext(r), framed: f}, nil
	}
}

// taken gives a connection that was hijacked before to the library.
type taken struct {
	http.ResponseWriter
	conn net.Conn
	buf  *bufio.ReadWriter
}

// Hijack implements http.Hijacker.
func (t taken) Hijack() (net.Conn, *bufio.ReadWriter, error) { return t.conn, t.buf, nil }

// framed is a websocket. A client cannot end its half of it: the end of its messages is its leaving.
type framed struct {
	*websocket.Conn
	left   chan struct{} // is closed when the client has left
	closed chan struct{} // is closed by end
	leave  sync.Once
	close  sync.Once
}

// Read implements io.Reader.
func (f *framed) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if err != nil {
		f.gone()
	}
	return n, err
}

// gone records that the client has left.
func (f *framed) gone() { f.leave.Do(func() { close(f.left) }) }

// end lets the library's server return.
func (f *framed) end() { f.close.Do(func() { close(f.closed) }) }

// Drop reads and drops the client's messages until it leaves, so that pings are answered.
func (c *Conn) Drop() { _, _ = io.Copy(io.Discard, c) }

// serverContext returns a context that ends with the server.
func serverContext(r *Request) context.Context {
	if ctx, ok := r.Context().Value(serverKey{}).(context.Context); ok {
		return ctx
	}
	return context.WithoutCancel(r.Context())
}
