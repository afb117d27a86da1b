package guestagent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/internal/shortage"
)

// maxWaiting limits the connections that no call has named yet. The oldest one is closed when there is another.
const maxWaiting = 256

// StreamPort accepts a shim's connections for the streams of processes. A call names each by the port that it came
// from.
type StreamPort struct {
	listener net.Listener
	peer     func(net.Addr) (port uint32, ok bool)
	done     sync.WaitGroup

	mu      sync.Mutex // guards waiting, order, changed, closed
	waiting map[uint32]net.Conn
	order   []uint32      // of waiting, the oldest first
	changed chan struct{} // closed at the next change
	closed  bool
}

// NewStreamPort starts a stream port. Close ends it and the listener. The peer function returns the port that a connection
// came from, and whether that is the shim's machine; see HostPort.
func NewStreamPort(l net.Listener, peer func(net.Addr) (port uint32, ok bool)) *StreamPort {
	p := &StreamPort{listener: l, peer: peer, waiting: map[uint32]net.Conn{}, changed: make(chan struct{})}
	p.done.Go(p.run)
	return p
}

// HostPort returns the port of an address of vsock, which must be the host's: a container of the guest can connect too.
func HostPort(a net.Addr) (port uint32, ok bool) {
	at, ok := a.(vsock.Addr)
	return at.Port, ok && at.CID == vsock.Host
}

func (p *StreamPort) run() {
	for {
		c, err := shortage.Accept(p.listener.Accept)
		if err != nil {
			return
		}
		port, ok := p.peer(c.RemoteAddr())
		if !ok || !p.add(port, c) {
			_ = c.Close()
		}
	}
}

func (p *StreamPort) add(port uint32, c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.drop(port) // a client may reuse a port after its connection has ended
	if len(p.order) >= maxWaiting {
		p.drop(p.order[0])
	}
	p.waiting[port] = c
	p.order = append(p.order, port)
	close(p.changed)
	p.changed = make(chan struct{})
	return true
}

// drop closes a connection that waits. Preconditions: p.mu is held.
func (p *StreamPort) drop(port uint32) {
	if c := p.take(port); c != nil {
		_ = c.Close()
	}
}

// take removes a connection that waits, and returns it or nil. Preconditions: p.mu is held.
func (p *StreamPort) take(port uint32) net.Conn {
	c, ok := p.waiting[port]
	if !ok {
		return nil
	}
	delete(p.waiting, port)
	p.order = slices.DeleteFunc(p.order, func(o uint32) bool { return o == port })
	return c
}

// Take returns the connection that came from a port, and waits for it until ctx ends. The caller closes it. NotFound when
// none came.
func (p *StreamPort) Take(ctx context.Context, port uint32) (net.Conn, error) {
	for {
		p.mu.Lock()
		c, changed, closed := p.take(port), p.changed, p.closed
		p.mu.Unlock()
		if c != nil {
			return c, nil
		}
		if !closed {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			}
		}
		return nil, fmt.Errorf("no connection came from port %d: %w", port, errdefs.ErrNotFound)
	}
}

// Close closes the listener and the connections that nobody has taken.
func (p *StreamPort) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.changed)
	}
	for _, port := range slices.Clone(p.order) {
		p.drop(port)
	}
	p.mu.Unlock()
	_ = p.listener.Close() // run ends
	p.done.Wait()
}
