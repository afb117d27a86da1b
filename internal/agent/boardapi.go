package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	programs "github.com/longshore/longshore/program"
)

// boardAPI is a listener for the control API's reading calls on the board. It is a server there while the operator's
// policy gives a client access to the agent.
type boardAPI struct {
	board *broker.Client
	rules func() board.Rules
	log   *slog.Logger
	again chan struct{} // a program asked for a handle: the policy may have changed
	done  chan struct{}

	mu     sync.Mutex // guards server, handle, open, closed
	server *programs.Server
	handle *programs.Handle
	open   map[string]int // connections, by the client's container
	closed bool
}

// The limits of connections: of all clients, and of one container.
const (
	boardConnections       = 64
	boardConnectionsOfEach = 8
)

func newBoardAPI(rules func() board.Rules, log *slog.Logger) *boardAPI {
	return &boardAPI{rules: rules, log: log, again: make(chan struct{}, 1), done: make(chan struct{}), open: map[string]int{}}
}

// wanted wakes serving, which reads the rules again.
func (a *boardAPI) wanted() {
	select {
	case a.again <- struct{}{}:
	default:
	}
}

// Accept implements net.Listener.
func (a *boardAPI) Accept() (net.Conn, error) {
	for {
		s := a.serving()
		if s == nil {
			return nil, net.ErrClosed
		}
		c, err := s.AcceptConn()
		if err != nil {
			a.end(false)
			continue
		}
		if admitted := a.admit(c); admitted != nil {
			return admitted, nil
		}
	}
}

// boardRetry is the pause after a failed attempt to serve.
const boardRetry = 5 * time.Second

// serving returns the server, and waits until there is one; nil after Close.
func (a *boardAPI) serving() *programs.Server {
	for {
		a.mu.Lock()
		s, closed := a.server, a.closed
		a.mu.Unlock()
		if s != nil || closed {
			return s
		}
		retry := (<-chan time.Time)(nil)
		if a.rules().OpensAgent() {
			if err := a.serve(); err == nil {
				continue
			} else if !errors.Is(err, net.ErrClosed) {
				a.log.Warn("could not serve the read-only calls on the board", "error", err)
			}
			retry = time.After(boardRetry)
		}
		select {
		case <-a.again:
		case <-retry:
		case <-a.done:
		}
	}
}

func (a *boardAPI) serve() error {
	ctx, cancel := context.WithTimeout(context.Background(), boardRetry)
	defer cancel()
	f, err := a.board.Handle(ctx, broker.Want{
		Container: board.Agent, Realm: board.Realm{Owner: board.Agent}, Rights: board.Serve,
		Identity: map[string]string{"server_owner": board.Agent}, Labels: map[string]string{"service": "control"},
	})
	if err != nil {
		return err
	}
	h, err := programs.OpenFile(f)
	if err != nil {
		return err
	}
	s, err := h.Serve(ctx, nil)
	if err != nil {
		return errors.Join(err, h.Close())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errors.Join(net.ErrClosed, s.Close(), h.Close())
	}
	a.server, a.handle = s, h
	return nil
}

// end ends the server: forGood, or until serving starts it again.
func (a *boardAPI) end(forGood bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if forGood && !a.closed {
		a.closed = true
		close(a.done)
	}
	if a.server != nil {
		_, _ = a.server.Close(), a.handle.Close()
		a.server, a.handle = nil, nil
	}
}

// Close implements net.Listener.
func (a *boardAPI) Close() error {
	a.end(true)
	return nil
}

// Addr implements net.Listener.
func (a *boardAPI) Addr() net.Addr { return &net.UnixAddr{Name: "board", Net: "unix"} }

// admit returns the connection, or closes it when there are too many.
func (a *boardAPI) admit(c *programs.Conn) net.Conn {
	client, all := c.Labels["client_container_id"], 0
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.open {
		all += n
	}
	if all >= boardConnections || a.open[client] >= boardConnectionsOfEach {
		_ = c.Close()
		return nil
	}
	a.open[client]++
	return &boardConn{UnixConn: c.UnixConn, release: sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[client]--; a.open[client] == 0 {
			delete(a.open, client)
		}
	})}
}

// boardConn is a connection that counts until it is closed.
type boardConn struct {
	*net.UnixConn
	release func()
}

// Close implements net.Conn.
func (c *boardConn) Close() error {
	defer c.release() // a descriptor that a program has left in it may make the close last
	return c.UnixConn.Close()
}
