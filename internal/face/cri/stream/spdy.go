package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// The versions of the remote command protocol over SPDY, and the names of its
// streams, as of k8s.io/cri-streaming. Version 4 tells the outcome as an object;
// 3 and later know terminal sizes.
const (
	protocolV4 = "v4.channel.k8s.io"
	protocolV3 = "v3.channel.k8s.io"
	protocolV2 = "v2.channel.k8s.io"

	headerType = "streamType"
	typeError  = "error"
	typeStdin  = "stdin"
	typeStdout = "stdout"
	typeStderr = "stderr"
	typeResize = "resize"
)

// errCut is the error of a stream after the client disconnected while opening it.
var errCut = errors.New("the connection was cut")

// remoteSPDY serves exec and attach over SPDY.
func (x *exchange) remoteSPDY(ctx context.Context) {
	protocol, err := httpstream.Handshake(x.r, x.w, []string{protocolV4, protocolV3, protocolV2})
	if err != nil {
		return // the client got the error
	}
	want := []string{typeError}
	for name, asked := range map[string]bool{
		typeStdin: x.req.Stdin, typeStdout: x.req.Stdout, typeStderr: x.req.Stderr,
		typeResize: x.req.TTY && (protocol == protocolV4 || protocol == protocolV3),
	} {
		if asked {
			want = append(want, name)
		}
	}
	g := &gathering{want: want, got: map[string]httpstream.Stream{}, all: make(chan struct{})}
	sc := spdy.NewResponseUpgrader().UpgradeResponse(x.w, x.r, g.take)
	if sc == nil {
		return // as above
	}
	defer x.endSPDY(ctx, sc)
	if err := g.wait(ctx); err != nil {
		x.conn.abort(err)
		return
	}
	resize := newSizes()
	s := Session{Resize: resize.out, Stdout: g.writer(typeStdout), Stderr: g.writer(typeStderr)}
	if st := g.got[typeStdin]; st != nil {
		s.Stdin = input{st, ctx, sc.CloseChan()}
	}
	if st := g.got[typeResize]; st != nil {
		go func() { _, _ = io.Copy(resize, st) }() // ends with the connection
	}
	o := x.run(ctx, s)
	if ctx.Err() != nil {
		return
	}
	if b := o.encode(protocol == protocolV4); len(b) > 0 {
		_, _ = g.got[typeError].Write(b)
	}
	for _, name := range []string{typeStdout, typeStderr, typeError} {
		if st := g.got[name]; st != nil {
			_ = st.Close()
		}
	}
}

// endSPDY closes a connection. One that is cut is cut first: a write that the
// client does not take would hold everything up.
func (x *exchange) endSPDY(ctx context.Context, sc httpstream.Connection) {
	if ctx.Err() != nil {
		x.conn.abort(context.Cause(ctx))
	}
	_ = sc.Close()
}

// gathering collects the streams that the client opens.
type gathering struct {
	want []string
	all  chan struct{}

	mu    sync.Mutex // guards got, ready; once all is closed nothing changes them
	got   map[string]httpstream.Stream
	ready []<-chan struct{} // closed when the client has been answered
}

// take is called for each stream that the client opens; an error refuses it.
func (g *gathering) take(st httpstream.Stream, answered <-chan struct{}) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := st.Headers().Get(headerType)
	if !slices.Contains(g.want, name) {
		return fmt.Errorf("stream %q was not asked for", name)
	}
	if g.got[name] != nil {
		return fmt.Errorf("a second stream %q", name)
	}
	g.got[name] = st
	g.ready = append(g.ready, answered)
	if len(g.got) == len(g.want) {
		close(g.all)
	}
	return nil
}

// wait returns once all streams are open and usable. mu is not needed: nothing changes them after
// that.
func (g *gathering) wait(ctx context.Context) error {
	timer := time.NewTimer(createTimeout)
	defer timer.Stop()
	if err := within(ctx, timer, g.all); err != nil {
		return err
	}
	for _, answered := range g.ready {
		if err := within(ctx, timer, answered); err != nil {
			return err
		}
	}
	for _, st := range g.got {
		if !usable(st) {
			return errCut
		}
	}
	return nil
}

func within(ctx context.Context, timer *time.Timer, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return errors.New("the client did not open its streams")
	}
}

// usable reports whether the client got the acceptance of its stream. The library calls a stream
// answered even when the answer could not be sent, and then a write to it would wait for ever.
func usable(st httpstream.Stream) bool {
	s, ok := st.(interface {
		SendReply(header http.Header, fin bool) error
	})
	return !ok || s.SendReply(http.Header{}, false) == nil
}

// writer returns the stream of a name, or nil. mu is not needed: wait has returned.
func (g *gathering) writer(name string) io.Writer {
	if st := g.got[name]; st != nil {
		return st
	}
	return nil
}

// input is a client's input. The library also reports its end when the client has disconnected, or
// has reset its streams before it: then input ends with the session, so that the process does not
// see an end of input that the client did not send.
type input struct {
	httpstream.Stream
	ctx  context.Context //nolint:containedctx // the session's life
	gone <-chan bool
}

// Read implements io.Reader.
func (i input) Read(b []byte) (int, error) {
	n, err := i.Stream.Read(b)
	if errors.Is(err, io.EOF) && i.cut() {
		<-i.ctx.Done()
		err = context.Cause(i.ctx)
	}
	return n, err
}

// cut reports whether an ended stream was reset, or its connection is at its end.
func (i input) cut() bool {
	select {
	case <-i.gone:
		return true
	default:
	}
	st, ok := i.Stream.(interface{ IsFinished() bool })
	return ok && st.IsFinished()
}
