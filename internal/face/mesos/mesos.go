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
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/net/netutil"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/mesos/acl"
	"github.com/longshore/longshore/internal/face/mesos/door"
	"github.com/longshore/longshore/internal/face/mesos/endpoint"
	"github.com/longshore/longshore/internal/face/mesos/guard"
	"github.com/longshore/longshore/internal/face/mesos/keep"
)

// Name is the face's name.
const Name = "mesos"

// Config is the section [face.mesos].
type Config struct {
	// Enabled runs this face.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket of the API.
	Socket string `toml:"socket"`
	// Listen is host:port where the API is served too, "" for nowhere.
	Listen string `toml:"listen"`
	// Credentials is a file of principals and secrets; Listen needs it.
	Credentials string `toml:"credentials"`
	// ACLs is a file of rules of what they may do, "" for all.
	ACLs string `toml:"acls"`
	// Hosts are further names by which clients may call Listen.
	Hosts []string `toml:"hosts"`
	// WorkDir has the containers' sandboxes; "" is mesos below agent.root.
	WorkDir string `toml:"work_dir"`
	// GCDelay is how long what ended containers have left is kept; 0 keeps it until it
	// is removed.
	GCDelay keep.Duration `toml:"gc_delay"`
	// MaxFetchBytes bounds what is fetched for one container, unpacked.
	MaxFetchBytes int64 `toml:"max_fetch_bytes"`
	// ShowAllOwners has the calls that show frameworks, executors, tasks and containers
	// tell of what the other faces run, too.
	ShowAllOwners bool `toml:"show_all_owners"`
	// MaxMessageBytes bounds one request, and one record of a stream.
	MaxMessageBytes int `toml:"max_message_bytes"`
	// MaxConnections bounds open connections; more wait.
	MaxConnections int `toml:"max_connections"`
}

// DefaultConfig is what holds where the file says nothing.
func DefaultConfig() Config {
	return Config{Socket: "/run/longshore/mesos.sock", GCDelay: keep.Default, MaxFetchBytes: 16 << 30, MaxMessageBytes: 4 << 20, MaxConnections: 256}
}

// Validate refuses what could not work, and what would answer anybody.
// InvalidArgument.
func (c Config) Validate() error {
	switch {
	case !path.IsAbs(c.Socket):
		return invalid("face.mesos.socket %q is not an absolute path", c.Socket)
	case c.WorkDir != "" && !path.IsAbs(c.WorkDir):
		return invalid("face.mesos.work_dir %q is not an absolute path", c.WorkDir)
	case c.MaxMessageBytes < 1<<16 || c.MaxConnections < 1:
		return invalid("face.mesos: max_message_bytes %d is below 64 KiB, or max_connections %d below 1", c.MaxMessageBytes, c.MaxConnections)
	case c.MaxFetchBytes < 0:
		return invalid("face.mesos.max_fetch_bytes %d is negative", c.MaxFetchBytes)
	case c.GCDelay < 0:
		return invalid("face.mesos.gc_delay %s is negative", time.Duration(c.GCDelay))
	case c.Listen == "":
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return invalid("face.mesos.listen %q: %v", c.Listen, err)
	}
	if c.ACLs != "" && !path.IsAbs(c.ACLs) {
		return invalid("face.mesos.acls %q is not an absolute path", c.ACLs)
	}
	if c.Credentials == "" {
		return invalid("face.mesos.listen %q: a TCP listener must know its clients, set face.mesos.credentials", c.Listen)
	}
	return nil
}

func (c Config) guard() (*guard.Guard, error) {
	if c.Listen == "" {
		return nil, nil //nolint:nilnil // nothing to guard
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, invalid("face.mesos.listen %q: %v", c.Listen, err)
	}
	return guard.New(c.Credentials, append(c.Hosts, host)...)
}

// rules reads the file of rules; nil without one.
func (c Config) rules() (*acl.Rules, error) {
	if c.ACLs == "" {
		return nil, nil //nolint:nilnil // all is allowed
	}
	raw, err := os.ReadFile(c.ACLs)
	if err != nil {
		return nil, fmt.Errorf("read face.mesos.acls: %w", err)
	}
	r, err := acl.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("face.mesos.acls %s: %w", c.ACLs, err)
	}
	return r, nil
}

// Options are what New needs.
type Options struct {
	face.Deps
	Config Config
	// Root is where the sandboxes are when Config.WorkDir does not say.
	Root string
	// All is the whole node, for Config.ShowAllOwners; nil has the face show what is
	// its own.
	All View
	// Level is the log's, for the calls that ask for it and change it; nil has
	// none.
	Level *slog.LevelVar
}

// Face serves the agent API.
type Face struct {
	server *server
	cfg    Config
	guard  *guard.Guard // nil without Config.Listen
}

var _ face.Face = (*Face)(nil)

// New makes the face; it serves nothing yet. InvalidArgument when the config is
// wrong or something required is missing.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil {
		return nil, invalid("mesos face: engine and logger are required")
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
	return &Face{server: s, cfg: o.Config, guard: g}, nil
}

// Name is "mesos".
func (f *Face) Name() string { return Name }

// headerTimeout bounds the time that a request's head may take.
const headerTimeout = 10 * time.Second

// Serve answers on every listener until ctx ends. Calls in flight are then cut
// off, as many of them last as long as a container.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return invalid("mesos face: no listener")
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(listeners)+2)
	var wg sync.WaitGroup
	if err := f.server.sweep(ctx); err != nil {
		f.server.log.WarnContext(ctx, "what an unfinished launch has left was not all taken away", "error", err)
	}
	defer f.server.level.Reset()
	wg.Go(func() { cleaner{f.server, time.Duration(f.cfg.GCDelay)}.run(ctx) })
	for i, from := range []follower{f.server.shows.counts(), f.server.nests(ctx)} {
		run, err := from.from(ctx)
		if err != nil {
			return err
		}
		from.lost() // all that was before
		wg.Go(func() {
			defer cancel()
			errs[len(listeners)+i] = run()
		})
	}
	for i, l := range listeners {
		srv := &http.Server{Handler: f.handler(l), ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(f.server.log.Handler(), slog.LevelDebug)}
		stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
		defer stop()
		wg.Go(func() {
			defer cancel()
			if err := srv.Serve(netutil.LimitListener(l, f.cfg.MaxConnections)); !errors.Is(err, http.ErrServerClosed) {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	f.server.calls.Wait()
	if outer.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// handler is the API, behind the guard unless it is reached by a file.
func (f *Face) handler(l net.Listener) http.Handler {
	api := endpoint.Handler{
		Do: func(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error) {
			return door.Do(ctx, call, f.server.call)
		},
		API: &door.Handler{Call: f.server.call, MaxMessage: int64(f.cfg.MaxMessageBytes)},
	}
	if l.Addr().Network() == "unix" {
		return api
	}
	if f.guard == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "403 Forbidden.", http.StatusForbidden) })
	}
	return f.guard.Wrap(api)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
