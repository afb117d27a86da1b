package dockerhttp

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/handover"
)

// Server are the parameters of Serve. Handler and Log are required.
type Server struct {
	Handler http.Handler
	// ConnContext returns the context of a connection; nil is that of Serve.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	Log         *slog.Logger
	// Limit bounds the connections; nil does not.
	Limit *connlimit.Limit
	// TLS is the config of a listener with TLS; nil is none.
	TLS *tls.Config
}

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 5 * time.Minute
	maxHeaderBytes    = 128 << 10
)

// serverKey is the key of the server's context in those of requests.
type serverKey struct{}

// connContext returns the context of a connection. It has the connection's slot for connlimit.Authenticate.
func (s Server) connContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.ConnContext(ctx, c)
	if s.ConnContext != nil {
		ctx = s.ConnContext(ctx, c)
	}
	return ctx
}

// Serve answers requests at a listener until ctx ends, and then returns its cause. Connections that are open then are closed, after a moment
// for requests under way if the next program of the agent waits.
func Serve(ctx context.Context, l net.Listener, s Server) error {
	requests, stop := handover.Requests(ctx)
	server := &http.Server{
		Handler: s.Handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return context.WithValue(requests, serverKey{}, requests) }, ConnContext: s.connContext,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, state http.ConnState) {
			connlimit.Busy(c, state == http.StateActive || state == http.StateHijacked)
		},
	}
	if s.Limit != nil {
		l = s.Limit.Listen(l)
	} else {
		l = connlimit.Lasting(l)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		stop(server)
	}()
	if s.TLS != nil {
		l = tls.NewListener(l, s.TLS)
	}
	err := server.Serve(l)
	if ctx.Err() != nil {
		<-stopped
		return context.Cause(ctx)
	}
	return err
}
