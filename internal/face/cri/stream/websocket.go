package stream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/websocket"
	"golang.org/x/sys/unix"
)

// The channels of the remote command protocol over websockets, as of
// k8s.io/cri-streaming; the first byte of each message names one.
const (
	channelStdin = iota
	channelStdout
	channelStderr
	channelError
	channelResize
	remoteChannels
)

// closeChannel as the first byte ends the channel that the second one names, in
// version 5.
const closeChannel = 255

// The sizes of a websocket's messages, and of its queues.
const (
	maxMessage   = 4 << 20
	queuedChunks = 16
)

// dialect is one version of the channel protocol.
type dialect struct {
	name   string
	base64 bool // text messages: a digit, then base64
	object bool // the outcome is an object
	close  bool // channels can be closed one by one
}

func dialects() []dialect {
	return []dialect{
		{name: "v5.channel.k8s.io", object: true, close: true},
		{name: "v4.channel.k8s.io", object: true},
		{name: "v4.base64.channel.k8s.io", object: true, base64: true},
		{name: "channel.k8s.io"},
		{name: "base64.channel.k8s.io", base64: true},
		{name: ""},
	}
}

// choose picks the first that the client names and we know.
func choose(offered []string) (dialect, bool) {
	if len(offered) == 0 {
		offered = []string{""}
	}
	for _, name := range offered {
		all := dialects()
		if i := slices.IndexFunc(all, func(d dialect) bool { return d.name == strings.TrimSpace(name) }); i >= 0 {
			return all[i], true
		}
	}
	return dialect{}, false
}

// channels are a websocket cut into numbered channels.
type channels struct {
	ws *websocket.Conn
	dialect
	mu sync.Mutex // serializes send: one message at a time
	in []io.WriteCloser
}

// upgrade serves a websocket in one of our dialects.
func (x *exchange) upgrade(serve func(*channels)) {
	var d dialect
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			var ok bool
			if d, ok = choose(c.Protocol); !ok {
				return fmt.Errorf("none of the protocols %q is known", c.Protocol)
			}
			if c.Protocol = nil; d.name != "" {
				c.Protocol = []string{d.name}
			}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.MaxPayloadBytes = maxMessage
			serve(&channels{ws: ws, dialect: d})
		},
	}.ServeHTTP(x.w, x.r)
}

// remoteWebsocket serves exec and attach over websocket channels.
func (x *exchange) remoteWebsocket(ctx context.Context) {
	x.upgrade(func(ch *channels) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(ctx, func() { x.conn.abort(context.Cause(ctx)) })
		resize, stdin := newSizes(), newQueue(ctx)
		ch.in = make([]io.WriteCloser, remoteChannels)
		ch.in[channelResize] = keepOpen{resize}
		s := Session{Resize: resize.out}
		if x.req.Stdin {
			s.Stdin, ch.in[channelStdin] = stdin, stdin
		}
		first := channelError
		if x.req.Stderr {
			s.Stderr, first = ch.writer(channelStderr), channelStderr
		}
		if x.req.Stdout {
			s.Stdout, first = ch.writer(channelStdout), channelStdout
		}
		// An empty message tells the client that it is joined.
		if ch.send(first, nil) != nil {
			return
		}
		go func() {
			err := ch.receive()
			if x.conn.ctx.Err() != nil { // it was cut, and the read failed only after that
				err = context.Cause(x.conn.ctx)
			}
			cancel(err)
		}()
		o := x.run(ctx, s)
		if !stop() {
			return // it was cut
		}
		if b := o.encode(ch.object); len(b) > 0 {
			_ = ch.send(channelError, b)
		}
		_ = ch.ws.Close()
	})
}

// receive passes the client's messages to the channels until the connection ends. The end closes no
// channel, because the client has closed none.
func (c *channels) receive() error {
	for {
		var msg []byte
		if err := websocket.Message.Receive(c.ws, &msg); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
				err = errGone // reset: with output that it had not taken
			}
			return err
		}
		channel, data, closes, err := c.parse(msg)
		if err != nil {
			return err
		}
		if channel < 0 || channel >= len(c.in) || c.in[channel] == nil {
			continue // not a channel that is read: as the protocol's other servers
		}
		if closes {
			_ = c.in[channel].Close()
			continue
		}
		if _, err := c.in[channel].Write(data); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	}
}

// parse takes a message apart. A channel of -1 is an empty message.
func (d dialect) parse(msg []byte) (channel int, data []byte, closes bool, err error) {
	if len(msg) == 0 {
		return -1, nil, false, nil
	}
	if d.close && msg[0] == closeChannel {
		if len(msg) != 2 {
			return 0, nil, false, errors.New("a closing message must name one channel")
		}
		return int(msg[1]), nil, true, nil
	}
	if !d.base64 {
		return int(msg[0]), msg[1:], false, nil
	}
	data, err = base64.StdEncoding.DecodeString(string(msg[1:]))
	if err != nil {
		return 0, nil, false, fmt.Errorf("decode a message: %w", err)
	}
	return int(msg[0]) - '0', data, false, nil
}

// send sends one message.
func (c *channels) send(channel int, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base64 {
		return websocket.Message.Send(c.ws, string(rune('0'+channel))+base64.StdEncoding.EncodeToString(data))
	}
	return websocket.Message.Send(c.ws, append([]byte{byte(channel)}, data...))
}

func (c *channels) writer(channel int) io.Writer { return channelWriter{c, channel} }

type channelWriter struct {
	c       *channels
	channel int
}

// Write implements io.Writer.
func (w channelWriter) Write(b []byte) (int, error) {
	if err := w.c.send(w.channel, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// keepOpen has no use for Close.
type keepOpen struct{ io.Writer }

// Close implements io.Closer.
func (keepOpen) Close() error { return nil }

// queue keeps some chunks of input, so that a process that does not read its
// input does not keep the client's other messages waiting.
type queue struct {
	ctx    context.Context //nolint:containedctx // the session's life
	chunks chan []byte
	ended  chan struct{}
	once   sync.Once
	begun  []byte
}

func newQueue(ctx context.Context) *queue {
	return &queue{ctx: ctx, chunks: make(chan []byte, queuedChunks), ended: make(chan struct{})}
}

// Write implements io.Writer. It keeps b.
func (q *queue) Write(b []byte) (int, error) {
	select {
	case <-q.ended:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case q.chunks <- b:
		return len(b), nil
	case <-q.ctx.Done():
		return 0, context.Cause(q.ctx)
	}
}

// Close ends the input after the queued messages.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.ended) })
	return nil
}

// Read implements io.Reader.
func (q *queue) Read(b []byte) (int, error) {
	for len(q.begun) == 0 {
		select {
		case q.begun = <-q.chunks:
			continue
		default:
		}
		select {
		case q.begun = <-q.chunks:
		case <-q.ended:
			select {
			case q.begun = <-q.chunks: // written just before the end
			default:
				return 0, io.EOF
			}
		case <-q.ctx.Done():
			return 0, context.Cause(q.ctx)
		}
	}
	n := copy(b, q.begun)
	q.begun = q.begun[n:]
	return n, nil
}
