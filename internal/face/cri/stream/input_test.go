package stream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// client is one that speaks SPDY.
type client struct {
	net.Conn
	spdy    httpstream.Connection
	streams map[string]httpstream.Stream
}

// dialSPDY opens the streams of a request over SPDY.
func dialSPDY(t *testing.T, s *Server, req Request) client {
	t.Helper()
	address, err := s.URL(req)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c := client{streams: map[string]httpstream.Stream{}}
	if c.Conn, err = new(net.Dialer).DialContext(t.Context(), "tcp", u.Host); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", u.Path, protocolV4)
	resp, err := http.ReadResponse(bufio.NewReaderSize(oneByte{c}, 16), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if c.spdy, err = spdy.NewClientConnection(c.Conn); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{typeError, typeStdout, typeStderr, typeStdin} {
		if c.streams[name], err = c.spdy.CreateStream(http.Header{"Streamtype": {name}}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// oneByte keeps a buffered reader from reading ahead.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 1)]) }

// TestAClientThatGoesDoesNotEndTheInput: a process might end with its input, before it can be
// killed with its children.
func TestAClientThatGoesDoesNotEndTheInput(t *testing.T) {
	read := make(chan error, 1)
	s := start(t, config(), fake{exec: func(ctx context.Context, _ Request, sess Session) (int, error) {
		_, err := io.ReadFull(sess.Stdin, make([]byte, len("some")))
		if err == nil {
			_, _ = sess.Stdout.Write([]byte("read"))
			_, err = io.Copy(io.Discard, sess.Stdin)
		}
		read <- err
		return 0, context.Cause(ctx)
	}})
	overSPDY := func(leave func(client)) func() io.Closer {
		return func() io.Closer {
			c := dialSPDY(t, s, all())
			_, _ = c.streams[typeStdin].Write([]byte("some"))
			_, _ = io.ReadFull(c.streams[typeStdout], make([]byte, len("read")))
			leave(c)
			return c.spdy
		}
	}
	overWebsocket := func(protocol string, leave func(*websocket.Conn)) func() io.Closer {
		return func() io.Closer {
			ws := dial(t, s, all(), protocol)
			_ = websocket.Message.Send(ws, []byte("\x00some"))
			for range 2 { // of the joining, and of the write after the reading
				var msg []byte
				_ = websocket.Message.Receive(ws, &msg)
			}
			leave(ws)
			return ws
		}
	}
	closed := func(ws *websocket.Conn) { _ = ws.Close() }
	for name, c := range map[string]struct {
		session func() io.Closer
		ends    bool
	}{
		"spdy, cut":              {overSPDY(func(c client) { _ = c.Close() }), false},
		"spdy, closed":           {overSPDY(func(c client) { _ = c.spdy.Close() }), false},
		"spdy, half-closed":      {overSPDY(func(c client) { _ = c.streams[typeStdin].Close() }), true},
		"websocket v5":           {overWebsocket("v5.channel.k8s.io", closed), false},
		"websocket v4":           {overWebsocket("v4.channel.k8s.io", closed), false},
		"websocket, half-closed": {overWebsocket("v5.channel.k8s.io", func(ws *websocket.Conn) { _ = websocket.Message.Send(ws, []byte{closeChannel, 0}) }), true},
	} {
		for range 20 {
			client := c.session()
			if err := <-read; (err == nil) != c.ends {
				t.Errorf("%s: the input ended by %v", name, err)
			}
			_ = client.Close()
		}
	}
}
