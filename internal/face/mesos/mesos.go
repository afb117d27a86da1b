// Package mesos is the face that speaks the Mesos v1 agent operator API: what is
// posted to /api/v1 is a call of its own kind, in JSON or protobuf. It joins no
// master; standalone containers exist to work without one.
//
// It keeps nothing of its own: a standalone container is a sandbox with one
// container, and a nested one a container below another, all by the name that
// Mesos has for them as their key. It must not know how anything is done below
// the engine. Start reading at server.go and launch.go; door has the HTTP part.
package mesos

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/auth"
	"github.com/longshore/longshore/internal/face/mesos/view"
	"github.com/longshore/longshore/internal/invalid"
)

// Name is the face's name.
const Name = "mesos"

// Options are what New needs.
type Options struct {
	face.Deps
	Config Config
	// Root is where the sandboxes are when Config.WorkDir does not say.
	Root string
	// All is the whole node, for Config.ShowAllOwners; nil has the face show what is
	// its own.
	All *View
	// Level is the log's, for the calls that ask for it and change it; nil has
	// none.
	Level *slog.LevelVar
	// Recovered is closed when the engine has recovered; nil: it has. Serve may be
	// called before.
	Recovered <-chan struct{}
}

// Face serves the agent API.
type Face struct {
	server *server
	cfg    Config
	limits *connlimit.Table
	guard  *auth.Authenticator // nil without Config.Listen
	tls    *tls.Config         // nil without Config.Cert
	// recovered is Options.Recovered.
	recovered <-chan struct{}
}

var _ face.Face = (*Face)(nil)

// New makes the face; it serves nothing yet. InvalidArgument when the config is
// wrong or something required is missing.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil {
		return nil, invalid.Errorf("mesos face: engine and logger are required")
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	if o.Config.WorkDir == "" {
		o.Config.WorkDir = path.Join(o.Root, Name)
	}
	g, err := o.Config.guard()
	if err != nil {
		return nil, err
	}
	secure, err := o.Config.tls()
	if err != nil {
		return nil, err
	}
	rules, err := o.Config.rules()
	if err != nil {
		return nil, err
	}
	o.Logger = o.Logger.With(slog.String("face", Name))
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	s.rules = rules
	return &Face{server: s, cfg: o.Config, limits: o.Limits, guard: g, tls: secure, recovered: o.Recovered}, nil
}

// Name is "mesos".
func (f *Face) Name() string { return Name }

// The times that a client gets by TCP.
const (
	// headerTimeout is how long a TLS handshake and a request's head may take, and the
	// rest of a request that is refused.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may wait for its next request.
	idleTimeout = 2 * time.Minute
)

// Serve answers on every listener until ctx ends, before the engine has recovered
// with what Mesos says then. Calls in flight are cut off at the end, as many of them
// last as long as a container.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return invalid.Errorf("mesos face: no listener")
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all errgroup.Group // whichever of them ends ends the others
	run := func(do func() error) {
		all.Go(func() error {
			defer cancel()
			return do()
		})
	}
	ready := make(chan struct{})
	g := gate{recovered: f.recovered, ready: ready}
	for _, l := range listeners {
		run(func() error { return f.listen(ctx, l, g) })
	}
	defer f.server.level.reset()
	defer func() { _ = f.server.fetcher.Cache.Close() }()
	run(func() error {
		if !g.wait(ctx) {
			return nil
		}
		follow, err := f.begin(ctx)
		if err != nil {
			return err
		}
		close(ready)
		for _, do := range follow {
			run(do)
		}
		all.Go(func() error {
			f.server.disks.run(ctx)
			return nil
		})
		cleaner{f.server, time.Duration(f.cfg.GCDelay)}.run(ctx)
		<-ctx.Done()
		return nil
	})
	err := all.Wait()
	f.server.calls.Wait()
	if outer.Err() != nil {
		return nil
	}
	return err
}

// begin does what has to be done before the first call, and returns what is to run
// beside the calls, until ctx ends.
func (f *Face) begin(ctx context.Context) (follow []func() error, err error) {
	if err := f.server.sweep(ctx); err != nil {
		f.server.log.WarnContext(ctx, "what an unfinished launch has left was not all taken away", "error", err)
	}
	return f.follow(ctx)
}

// listen answers on one listener until ctx ends.
func (f *Face) listen(ctx context.Context, l net.Listener, g gate) error {
	srv := &http.Server{
		Handler: f.handler(l, g), ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: slog.NewLogLogger(f.server.log.Handler(), slog.LevelDebug), ConnState: connlimit.ConnState, ConnContext: connlimit.ConnContext,
	}
	o := connlimit.Options{Name: Name, Key: "face.mesos.max_connections", Max: f.cfg.MaxConnections}
	if !local(l) {
		srv.IdleTimeout = idleTimeout
		o.Name, o.PerPeer, o.Unauthenticated = Name+"-tcp", f.cfg.MaxConnectionsPerPeer, f.cfg.MaxUnauthenticated
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(f.secured(f.limits.Limit(o).Listen(l))); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// handler is the API, behind the guard unless it is reached by a file.
func (f *Face) handler(l net.Listener, g gate) http.Handler {
	api := g.wrap(view.Documents{
		Do: func(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error) {
			return api.Do(ctx, call, f.server.call)
		},
		API: &api.Handler{Call: f.server.call, MaxMessage: int64(f.cfg.MaxMessageBytes)},
	})
	if local(l) {
		return api
	}
	if f.guard == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "403 Forbidden.", http.StatusForbidden) })
	}
	return hurried(f.guard.Wrap(known(api), realm))
}

// local reports whether only who may open a file reaches l.
func local(l net.Listener) bool { return l.Addr().Network() == "unix" }

// hurried gives the rest of a request a time, until known takes it away: the server
// reads the body of one that is refused, to answer it in peace.
func hurried(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
			panic(http.ErrAbortHandler) // the connection has gone
		}
		next.ServeHTTP(w, r)
	})
}

// known serves a client that the guard has let through, for as long as it takes: a
// request may last as long as a container.
func known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connlimit.Authenticate(r.Context())
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// realm is what Mesos calls what a request is for: the older documents are for
// reading only.
func realm(r *http.Request) string {
	if view.IsDocument(r.URL.Path) {
		return "mesos-agent-readonly"
	}
	return "mesos-agent-readwrite"
}

// secured has TLS where it is configured, but for the socket's file.
func (f *Face) secured(l net.Listener) net.Listener {
	if f.tls == nil || local(l) {
		return l
	}
	return tls.NewListener(l, f.tls)
}
