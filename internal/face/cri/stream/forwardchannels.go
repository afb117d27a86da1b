package stream

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync"
)

// forwardChannels serves port forwarding over websocket channels: for each requested port, one data
// and one error channel; the first message on each is the port. There is one connection for each
// port.
func (x *exchange) forwardChannels(ctx context.Context) {
	if len(x.req.Ports) == 0 {
		http.Error(x.w, "this protocol needs the ports in the request", http.StatusBadRequest)
		return
	}
	x.upgrade(func(ch *channels) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(ctx, func() { x.conn.abort(context.Cause(ctx)) })
		ch.in = make([]io.WriteCloser, 2*len(x.req.Ports))
		var all sync.WaitGroup
		for i, port := range x.req.Ports {
			in := newQueue(ctx)
			ch.in[2*i] = in
			head := binary.LittleEndian.AppendUint16(nil, port)
			if ch.send(2*i, head) != nil || ch.send(2*i+1, head) != nil {
				cancel(errGone)
				break
			}
			all.Go(func() {
				defer x.server.recover(ctx)
				target, err := x.server.o.Backend.Dial(ctx, x.req.ID, port)
				if err != nil {
					_ = ch.send(2*i+1, []byte(err.Error()))
					return
				}
				join(ctx, target, channelEnds{in, ch.writer(2 * i)})
			})
		}
		go func() { cancel(ch.receive()) }()
		all.Wait()
		if stop() {
			_ = ch.ws.Close()
		}
	})
}

// channelEnds are both directions of a channel. The end of the target's output ends the client's
// direction too, because the protocol has no half-close.
type channelEnds struct {
	*queue
	out io.Writer
}

// Write implements io.Writer.
func (c channelEnds) Write(b []byte) (int, error) { return c.out.Write(b) }

// CloseWrite ends both directions.
func (c channelEnds) CloseWrite() error { return c.Close() }

// offers reports whether a header's list names a protocol.
func offers(list, protocol string) bool {
	for name := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(name) == protocol {
			return true
		}
	}
	return false
}
