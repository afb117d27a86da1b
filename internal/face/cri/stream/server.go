// Package stream serves the URLs that the CRI's Exec, Attach and PortForward return: the client's
// standard streams and forwarded connections, over SPDY/3.1 and websockets, on a TCP listener of
// its own.
//
// It must not know the engine: a Backend runs the client's request. Start reading at Server, then
// remote.go (exec and attach) and forward.go; conn.go notices the end of a client, for all
// protocols.
package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/obs"
)

// Backend runs a client's request. Each call ends with its context, which ends when the client has
// gone.
type Backend interface {
	// Exec runs a command to its end and returns its exit status.
	Exec(ctx context.Context, req Request, s Session) (status int, err error)
	// Attach joins a running container until it ends.
	Attach(ctx context.Context, req Request, s Session) error
	// Dial connects to a port of a sandbox's loopback.
	Dial(ctx context.Context, sandbox string, port uint16) (net.Conn, error)
}

// Options are the parameters of New.
type Options struct {
	Config  Config
	Backend Backend      // required
	Logger  *slog.Logger // required
	// Face is the label of panics in Metrics; Metrics nil counts nothing.
	Face    string
	Metrics face.Metrics
	// Limits shows how many connections are open; nil shows it nowhere.
	Limits *connlimit.Table
}

// The times that a client gets.
const (
	// createTimeout is how long it may take to open the streams it asked for.
	createTimeout = 30 * time.Second
	// headerTimeout is how long its request may take, the TLS handshake before it, and
	// the next one after an answer. A session has taken the connection over by then.
	headerTimeout = 10 * time.Second
	// ticketLife is how long a URL is good.
	ticketLife = time.Minute
	// maxTickets bounds the URLs that nobody has used yet.
	maxTickets = 1000
	// maxHeader bounds a request's header, bytes.
	maxHeader = 64 << 10
)

// Server hands out URLs and serves them.
type Server struct {
	o       Options
	tls     *tls.Config // nil without
	tickets *tickets

	mu       sync.Mutex   // guards listener, base, closing; no session begins once closing is set
	listener net.Listener // nil while closed
	base     url.URL
	closing  bool
	sessions sync.WaitGroup
}

// New makes a server; it listens from Open on. InvalidArgument when the config is
// wrong or something required is missing.
func New(o Options) (*Server, error) {
	if o.Backend == nil || o.Logger == nil {
		return nil, fmt.Errorf("streaming server: backend and logger are required: %w", errdefs.ErrInvalidArgument)
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	s := &Server{o: o, tickets: newTickets(ticketLife, maxTickets, time.Now)}
	var err error
	s.tls, err = o.Config.readFiles()
	return s, err
}

// Open begins to listen; it is success when the server listens already.
func (s *Server) Open(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	l, err := handover.Listen(ctx, "cri streams "+s.o.Config.Address, func() (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", s.o.Config.Address)
	})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", keyAddress, err)
	}
	s.listener, s.base, s.closing = l, baseURL(s.o.Config.Address, l.Addr(), s.tls != nil), false
	return nil
}

// baseURL is how kubelet, which is on this node, reaches the listener.
func baseURL(asked string, addr net.Addr, secure bool) url.URL {
	u := url.URL{Scheme: "http", Host: addr.String()}
	if secure {
		u.Scheme = "https"
	}
	if a, ok := addr.(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		host := "127.0.0.1" // 0.0.0.0 becomes a listener on both
		if strings.HasPrefix(asked, "[::]:") {
			host = "::1"
		}
		u.Host = net.JoinHostPort(host, strconv.Itoa(a.Port))
	}
	return u
}

// URL returns an address that serves req, once and within a minute. ResourceExhausted when too many
// are waiting to be used, Unavailable when the server does not listen.
func (s *Server) URL(req Request) (string, error) {
	s.mu.Lock()
	base, open := s.base, s.listener != nil
	s.mu.Unlock()
	if !open {
		return "", fmt.Errorf("%s: the streaming server does not listen: %w", req.Kind, errdefs.ErrUnavailable)
	}
	token, err := s.tickets.issue(req)
	if err != nil {
		return "", err
	}
	base.Path = "/" + string(req.Kind) + "/" + token
	return base.String(), nil
}

// Serve answers until ctx ends, which is no error, or until the listener fails.
// It returns once every session has ended.
func (s *Server) Serve(ctx context.Context) error {
	s.mu.Lock()
	inner := s.listener
	s.mu.Unlock()
	if inner == nil {
		return fmt.Errorf("streaming server: not open: %w", errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := s.o.Limits.Limit(connlimit.Options{
		Name: "cri-stream", Key: "face.cri.max_streams", Max: s.o.Config.MaxStreams, PerPeer: s.o.Config.PerPeer, Unauthenticated: s.o.Config.Unauthenticated,
	})
	var l net.Listener = &listener{Listener: inner, ctx: ctx, idle: s.o.Config.IdleTimeout, limit: limit}
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, IdleTimeout: headerTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, underlying(c))
		},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // an upgrade needs HTTP/1.1
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(l)
	ended := ctx.Err() != nil
	cancel()
	s.mu.Lock()
	s.listener, s.closing = nil, true
	s.mu.Unlock()
	_ = inner.Close()
	s.sessions.Wait()
	if ended || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("streaming server: %w", err)
}

type connKey struct{}

// ServeHTTP serves one URL.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		http.Error(w, "the agent stops", http.StatusServiceUnavailable)
		return
	}
	defer s.sessions.Done()
	defer s.recover(r.Context())
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		http.Error(w, "not a connection of this server", http.StatusInternalServerError)
		return
	}
	kind, token, ok := parsePath(r.Method, r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	req, ok := s.tickets.redeem(token)
	if !ok || req.Kind != kind {
		http.NotFound(w, r)
		return
	}
	if slot := c.slot.Load(); slot != nil {
		slot.Authenticate()
		slot.Begin() // for good: a connection is one session's
	}
	ctx, cancel := c.context(r.Context())
	defer cancel()
	ctx = caller.With(ctx, caller.Caller{Face: s.o.Face, Call: string(kind), Peer: obs.PeerOfHTTP(r)})
	x := &exchange{server: s, conn: c, req: req, w: w, r: r.WithContext(ctx)}
	switch {
	case kind == KindPortForward:
		x.forward(ctx)
	case isWebsocket(r):
		x.remoteWebsocket(ctx)
	default:
		x.remoteSPDY(ctx)
	}
}

// exchange is one request with its connection.
type exchange struct {
	server *Server
	conn   *conn
	req    Request
	w      http.ResponseWriter
	r      *http.Request
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.sessions.Add(1)
	return true
}

// recover turns a panic into a session's end; the other sessions continue.
func (s *Server) recover(ctx context.Context) {
	if p := recover(); p != nil {
		if s.o.Metrics != nil {
			s.o.Metrics.Panic(s.o.Face)
		}
		s.o.Logger.ErrorContext(ctx, "a streaming session panicked", "panic", fmt.Sprint(p), "stack", stack())
	}
}

// parsePath takes /KIND/TOKEN apart.
func parsePath(method, path string) (Kind, string, bool) {
	if method != http.MethodGet && method != http.MethodPost {
		return "", "", false
	}
	kind, token, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || token == "" || strings.Contains(token, "/") || !slices.Contains(kinds(), Kind(kind)) {
		return "", "", false
	}
	return Kind(kind), token, true
}

func isWebsocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
}
