// Package mesos is the face that speaks the Mesos v1 agent operator API: a client posts
// calls of many types to /api/v1, in JSON or protobuf. It joins no master; standalone
// containers are meant for use without one.
//
// A standalone container is a sandbox with one container, and a nested one a container in the same
// sandbox; the engine's key is the container's id in text form. All state is in the engine and in
// the containers' directories, but for the configurations of resource providers. The package must
// not know anything below the engine.
//
// Start reading at server.go, which lists the handlers, and launch.go. Package api has the HTTP
// part, translate the translation of launches, view the answers.
package mesos

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/view"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/invalid"
)

// Name is the face's name.
const Name = "mesos"

// Options configure New.
type Options struct {
	face.Deps
	Config Config
	// Root is the agent's root directory. The work directory is below it if
	// Config.WorkDir is empty.
	Root string
	// All reads the objects of all owners, for Config.ShowAllOwners; with nil the face
	// shows only its own.
	All *Reader
	// Level is the level of the log, which calls can change; nil if it cannot be
	// changed.
	Level *slog.LevelVar
	// Recovered is closed when the engine has recovered; nil means that it has. Serve
	// may be called before.
	Recovered <-chan struct{}
}

// Face serves the agent API.
type Face struct {
	server *server
	cfg    Config
	limits *connlimit.Table
	files  listenerFiles
	// recovered is Options.Recovered.
	recovered <-chan struct{}
}

var _ face.Face = (*Face)(nil)

// New returns the face, which serves nothing yet. It returns InvalidArgument if the
// configuration is wrong or something required is missing.
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
	files, err := o.Config.readFiles()
	if err != nil {
		return nil, err
	}
	o.Logger = o.Logger.With(slog.String("face", Name))
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	s.rules = files.rules
	return &Face{server: s, cfg: o.Config, limits: o.Limits, files: files, recovered: o.Recovered}, nil
}

// Name is "mesos".
func (f *Face) Name() string { return Name }

// Timeouts of connections over TCP.
const (
	// headerTimeout limits a TLS handshake and a request's header.
	headerTimeout = 10 * time.Second
	// idleTimeout limits how long a connection may wait for its next request.
	idleTimeout = 2 * time.Minute
)

// Serve serves the API on every listener until ctx ends. Before the engine has
// recovered it answers as Mesos does during recovery. Calls in flight are cut off at
// the end, because many of them last as long as a container.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return invalid.Errorf("mesos face: no listener")
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all errgroup.Group // the first that returns ends the others
	run := func(do func() error) {
		all.Go(func() error {
			defer cancel()
			return do()
		})
	}
	ready := make(chan struct{})
	g := recoveryGate{recovered: f.recovered, ready: ready}
	for _, l := range listeners {
		run(func() error {
			if handover.Continues(ctx) { // its clients' requests wait for this program
				select {
				case <-ready:
				case <-ctx.Done():
					return nil
				}
			}
			return f.listen(ctx, l, g)
		})
	}
	defer f.server.level.reset()
	defer func() { _ = f.server.fetcher.Cache.Close() }()
	run(func() error {
		if !g.wait(ctx) {
			return nil
		}
		follow, err := f.start(ctx)
		if err != nil {
			return err
		}
		close(ready)
		for _, do := range follow {
			run(do)
		}
		all.Go(func() error {
			f.server.diskQuota.run(ctx)
			return nil
		})
		collector{f.server, time.Duration(f.cfg.GCDelay)}.run(ctx)
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

// formerEndsFile is where earlier versions kept how sessions ended, below the work
// directory. The engine keeps that now.
const formerEndsFile = "sessions"

// start prepares the face for the first call, and returns the functions that run beside the calls
// until ctx ends.
func (f *Face) start(ctx context.Context) (follow []func() error, err error) {
	if err := f.server.removeUnfinished(ctx); err != nil {
		f.server.log.WarnContext(ctx, "could not remove everything that unfinished launches left; the next start of the agent tries again", "error", err)
	}
	if err := os.Remove(filepath.Join(f.server.workDir, formerEndsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.server.log.WarnContext(ctx, "could not remove a file that an earlier version left; the next start of the agent tries again", "error", err)
	}
	return f.followEvents(ctx)
}

func connState(c net.Conn, s http.ConnState) {
	connlimit.Busy(c, s == http.StateActive || s == http.StateHijacked)
}

// listen serves one listener until ctx ends.
func (f *Face) listen(ctx context.Context, l net.Listener, g recoveryGate) error {
	requests, end := handover.Requests(ctx)
	srv := &http.Server{
		Handler: f.handler(l, g), ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return requests },
		ErrorLog: slog.NewLogLogger(f.server.log.Handler(), slog.LevelDebug), ConnState: connState, ConnContext: connlimit.ConnContext,
	}
	o := connlimit.Options{Name: Name, Key: "face.mesos.max_connections", Max: f.cfg.MaxConnections}
	if !isLocal(l) {
		srv.IdleTimeout = idleTimeout
		o.Name, o.PerPeer, o.Unauthenticated = Name+"-tcp", f.cfg.MaxConnectionsPerPeer, f.cfg.MaxUnauthenticated
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		end(srv)
		close(ended)
	})
	err := srv.Serve(f.withTLS(f.limits.Limit(o).Listen(l)))
	if stop() { // the server has failed
		end(srv)
	} else {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// handler is the API, with authentication unless l is a unix socket.
func (f *Face) handler(l net.Listener, g recoveryGate) http.Handler {
	h := g.wrap(view.Documents{
		Do: func(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error) {
			return api.Do(ctx, call, f.server.call)
		},
		API: &api.Handler{Call: f.server.call, MaxMessage: int64(f.cfg.MaxMessageBytes)},
	})
	if isLocal(l) {
		return h
	}
	if f.files.authenticator == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { api.WriteError(w, r, api.Forbidden()) })
	}
	return f.files.authenticator.Wrap(authenticated(h), realm)
}

// isLocal reports whether l is a unix socket, which the mode of its file protects.
func isLocal(l net.Listener) bool { return l.Addr().Network() == "unix" }

// authenticated serves a known client.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connlimit.Authenticate(r.Context())
		next.ServeHTTP(w, r)
	})
}

// realm is Mesos' name of the part of the agent that a request is for. The documents
// are for reading only.
func realm(r *http.Request) string {
	if view.IsDocument(r.URL.Path) {
		return "mesos-agent-readonly"
	}
	return "mesos-agent-readwrite"
}

// withTLS adds TLS if it is configured, except to a unix socket.
func (f *Face) withTLS(l net.Listener) net.Listener {
	if f.files.tls == nil || isLocal(l) {
		return l
	}
	return tls.NewListener(l, f.files.tls)
}
