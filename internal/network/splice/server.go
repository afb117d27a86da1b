// Package splice verifies the connections of sandboxes to the addresses of names. The rules of a sandbox redirect such a
// connection to a listener in its network namespace. A Server reads the name that the connection asks for, TLS's server name or
// HTTP's Host, and joins the connection to its destination, if the name is permitted there. It resets all others.
//
// Its input is a workload's. It runs in the process of the name server (network/names), which is confined. The bytes of a TLS
// connection pass from socket to socket in the kernel; of HTTP each request is read, because each has a host of its own.
//
// Start at Server.
package splice

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/shortage"
)

// The bounds of one sandbox and of all.
const (
	maxConns    = 256
	fewConns    = 16 // of one sandbox, also while others use most of all
	maxAll      = 2048
	helloTime   = 10 * time.Second
	connectTime = 30 * time.Second
	// retiredTime bounds a connection of a process that has a successor, after its sandbox has sent all.
	retiredTime = 10 * time.Second
)

var errClosed = errors.New("the server is closed")

// Judge decides about connections, and records them.
type Judge interface {
	// Permit returns the reason to refuse a connection to an address for a name, or "".
	Permit(ctx context.Context, name string, to netip.AddrPort) (reason string)
	// Keep reports whether a connection for a name may continue after a change.
	Keep(name string, port uint16) bool
	Opened(name string, to netip.AddrPort)
	Refused(name string, to netip.AddrPort, reason string)
}

// all counts the connections of all sandboxes of this process.
var all shared

// shared is a number of connections that sandboxes share: one may use at most as many as are free.
type shared struct {
	mu   sync.Mutex // guards used
	used int
}

func (s *shared) take(mine int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mine >= maxConns || s.used >= maxAll || mine >= fewConns && mine >= maxAll-s.used {
		return false
	}
	s.used++
	return true
}

func (s *shared) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
}

// Server verifies the connections of one sandbox.
type Server struct {
	judge    Judge
	patience time.Duration   // for the first name of a connection
	ctx      context.Context //nolint:containedctx // it ends with the sandbox, not with a call
	cancel   context.CancelCauseFunc
	ended    sync.WaitGroup

	mu       sync.Mutex // guards families, conns, retired
	families [2]*family // of IPv4 and IPv6; nil for none
	conns    map[*joined]bool
	retired  bool
}

// joined is a connection of the sandbox.
type joined struct {
	client, server *net.TCPConn   // server is nil before the name is permitted
	to             netip.AddrPort // its destination
	name           string         // the last one
}

// New returns a server without listeners.
func New(judge Judge) *Server {
	s := &Server{judge: judge, patience: helloTime, conns: map[*joined]bool{}}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Add takes a pair's files over. They replace those of the same family.
func (s *Server) Add(listener, spare *os.File) error {
	f, err := newFamily(listener, spare)
	if err != nil {
		return err
	}
	i := 0
	if f.at.Addr().Is6() {
		i = 1
	}
	s.mu.Lock()
	before := s.families[i]
	closed := s.ctx.Err() != nil || s.retired
	if closed {
		before = f
	} else {
		s.families[i] = f
		s.ended.Go(func() { s.accept(f) })
	}
	s.mu.Unlock()
	if before != nil {
		before.close()
	}
	if closed {
		return errClosed
	}
	return nil
}

// Close ends all connections. The sandbox's network namespace has no socket of the server any more when it returns.
func (s *Server) Close() {
	s.cancel(errClosed)
	s.unlisten()
	s.mu.Lock()
	for j := range s.conns {
		j.reset()
	}
	s.mu.Unlock()
	s.ended.Wait()
}

func (s *Server) unlisten() {
	s.mu.Lock()
	list := s.families
	s.families = [2]*family{}
	s.mu.Unlock()
	for _, f := range list {
		if f != nil {
			f.close()
		}
	}
}

// Review ends the connections for names that are not permitted any more.
func (s *Server) Review() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for j := range s.conns {
		if j.name != "" && !s.judge.Keep(j.name, j.to.Port()) {
			j.reset()
		}
	}
}

// Retire accepts no more connections, because another process does. It returns when those that there are have ended.
func (s *Server) Retire() {
	s.unlisten()
	s.mu.Lock()
	s.retired = true
	s.mu.Unlock()
	s.ended.Wait()
}

// reset ends both connections at once.
func (j *joined) reset() {
	_ = j.client.Close()
	if j.server != nil {
		_ = j.server.Close()
	}
}

func (s *Server) accept(f *family) {
	for {
		c, err := shortage.Accept(f.listener.AcceptTCP)
		if err != nil {
			return
		}
		if f.take(c) {
			continue
		}
		_ = c.SetLinger(0) // the end of this process, too, must not look like the end of the data
		j := &joined{client: c}
		s.mu.Lock()
		ok := s.ctx.Err() == nil && all.take(len(s.conns))
		if ok {
			s.conns[j] = true
			s.ended.Go(func() { s.serve(f, j) })
		}
		s.mu.Unlock()
		if !ok {
			_ = c.Close()
		}
	}
}

// serve handles one connection of the sandbox.
func (s *Server) serve(f *family, j *joined) {
	defer func() {
		s.mu.Lock()
		j.reset()
		delete(s.conns, j)
		s.mu.Unlock()
		all.leave()
	}()
	to, err := original(j.client, f.at.Addr().Is4())
	if err != nil || to == f.at || !egress.Verified(to.Port()) { // a program has connected to the listener itself
		return
	}
	j.to = to
	if j.client.SetReadDeadline(time.Now().Add(s.patience)) != nil {
		return
	}
	if to.Port() == egress.HTTPS {
		s.tls(f, j)
		return
	}
	s.http(f, j)
}

// permit asks the judge about the name of a connection, and records a refusal.
func (s *Server) permit(j *joined, name string, err error) bool {
	var reason string
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason = "no name came in time"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isNet(err):
		return false // the program has ended it
	case err != nil:
		reason = err.Error()
	case !egress.ValidName(name):
		reason = "it asks for something that is not a name"
	default:
		s.mu.Lock()
		j.name = name
		s.mu.Unlock()
		reason = s.judge.Permit(s.ctx, name, j.to)
	}
	if reason != "" {
		s.judge.Refused(bounded(name), j.to, reason)
	}
	return reason == ""
}

func isNet(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// bounded returns a name for the log: one that is not valid is not in it.
func bounded(name string) string {
	if egress.ValidName(name) {
		return name
	}
	return ""
}

// reach connects to the destination.
func (s *Server) reach(f *family, j *joined) bool {
	server, err := f.connect(s.ctx, j.to)
	if err != nil {
		return false
	}
	_ = server.SetLinger(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	j.server = server
	if s.ctx.Err() != nil || j.client.SetReadDeadline(time.Time{}) != nil {
		return false // the deferred reset closes both
	}
	s.judge.Opened(j.name, j.to)
	return true
}

// tls verifies and joins a connection to port 443.
func (s *Server) tls(f *family, j *joined) {
	buf, n := make([]byte, 2048), 0
	name, need, err := "", recordHead, error(nil)
	for need > 0 && err == nil {
		if need > len(buf) {
			buf = append(buf, make([]byte, maxHello-len(buf))...)
		}
		var more int
		more, err = io.ReadAtLeast(j.client, buf[n:], need-n)
		if n += more; err == nil {
			name, need, err = helloName(buf[:n])
		}
	}
	if !s.permit(j, toLower(name), err) || !s.reach(f, j) {
		return
	}
	if _, err := j.server.Write(buf[:n]); err != nil {
		return
	}
	s.join(j, func() error { return pass(j.server, j.client) })
}

// http verifies each request of a connection to port 80, and joins the answers.
func (s *Server) http(f *family, j *joined) {
	r := bufio.NewReaderSize(j.client, maxLine)
	h, err := readHead(r)
	if !s.permit(j, h.host, err) || !s.reach(f, j) {
		return
	}
	s.join(j, func() error {
		for {
			if _, err := j.server.Write(h.raw); err != nil {
				return err
			}
			if err := h.body(j.server, r); err != nil {
				return err
			}
			if h, err = readHead(r); errors.Is(err, io.EOF) {
				return nil
			}
			if same := err == nil && h.host == j.name; !same && !s.permit(j, h.host, err) {
				return errRequest
			}
		}
	})
}

// join copies both directions until both have ended, or one has failed. up copies the sandbox's.
func (s *Server) join(j *joined, up func() error) {
	var down sync.WaitGroup
	down.Go(func() {
		if pass(j.client, j.server) != nil {
			s.abort(j)
			return
		}
		_ = j.client.CloseWrite()
	})
	if err := up(); err != nil {
		s.abort(j)
	} else {
		_ = j.server.CloseWrite()
		s.mu.Lock()
		if s.retired { // nobody ends it with its sandbox
			_ = j.server.SetReadDeadline(time.Now().Add(retiredTime))
		}
		s.mu.Unlock()
	}
	down.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Both sides have sent all. Close must not drop the last bytes.
	_ = j.client.SetLinger(-1)
	_ = j.server.SetLinger(-1)
}

func (s *Server) abort(j *joined) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.reset()
}

// pass copies one direction, by splice(2).
func pass(to, from *net.TCPConn) error {
	_, err := to.ReadFrom(from)
	return err
}

func toLower(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
