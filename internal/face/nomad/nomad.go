// Package nomad is the face that Nomad drives: the Driver service of its task
// driver plugins, on a unix socket where the plugin that Nomad starts (relay)
// brings its calls.
//
// It keeps nothing of its own: a task is a sandbox with one container, both by the
// task's id as their key, so that recovery is a lookup. It must not know how
// anything is done below the engine. Start reading at server.go and start.go;
// translate, taskconf and schema are pure.
package nomad

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path"
	"sync"

	"google.golang.org/grpc"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/grpcerr"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/pull"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/obs"
)

// Name is the face's name.
const Name = "nomad"

// Config is the section [face.nomad].
type Config struct {
	// Enabled runs this face.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket of the Driver service.
	Socket string `toml:"socket"`
	// MaxMessageBytes bounds one request and one answer.
	MaxMessageBytes int `toml:"max_message_bytes"`
	// MaxConnections bounds open connections. For more the idle ones are closed, the
	// longest idle first; when all have a call in flight, more wait.
	MaxConnections int `toml:"max_connections"`
	// CredentialHelpers are absolute paths of programs docker-credential-NAME. The plugin's
	// configuration may select one by NAME for credentials of registries.
	CredentialHelpers []string `toml:"credential_helpers"`
}

// DefaultConfig has the defaults of the configuration file.
func DefaultConfig() Config {
	return Config{Enabled: true, Socket: plugin.DefaultSocket, MaxMessageBytes: 16 << 20, MaxConnections: 1024}
}

// Validate returns InvalidArgument for values that cannot work.
func (c Config) Validate() error {
	switch {
	case !path.IsAbs(c.Socket):
		return invalid.Errorf("face.nomad.socket %q is not an absolute path", c.Socket)
	case c.MaxMessageBytes < 1<<20 || c.MaxConnections < 1:
		return invalid.Errorf("face.nomad: max_message_bytes %d is below 1 MiB, or max_connections %d below 1", c.MaxMessageBytes, c.MaxConnections)
	}
	names := map[string]bool{}
	for _, p := range c.CredentialHelpers {
		name, ok := pull.HelperName(p)
		if !ok || names[name] {
			return invalid.Errorf("face.nomad.credential_helpers: %q is no absolute path of a docker-credential-NAME, or a second one of that name", p)
		}
		names[name] = true
	}
	return nil
}

// Options are the parameters of New.
type Options struct {
	face.Deps
	Config Config
	// Registry is the default registry of image names; "" is docker.io.
	Registry string
	// Archives reads the archives of config.load into the store.
	Archives pull.Archives
}

// Face serves the Driver service.
type Face struct {
	server *server
	cfg    Config
	limits *connlimit.Table
	obs    obs.GRPC
}

var _ face.Face = (*Face)(nil)

// New makes the face; it serves nothing yet. InvalidArgument when the config is
// wrong or something required is missing.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil {
		return nil, invalid.Errorf("nomad face: engine and logger are required")
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	log := o.Logger.With(slog.String("face", Name))
	return &Face{server: newServer(o, log), cfg: o.Config, limits: o.Limits, obs: obs.GRPC{Face: Name, Metrics: o.Counting(), Logger: o.Logger, Audit: o.Audit, Changes: func(string) bool { return false }}}, nil
}

// Name is "nomad".
func (f *Face) Name() string { return Name }

// Serve answers on every listener until ctx ends. Calls in flight are then cut
// off: most of them last as long as a task, and the relay makes them again.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return invalid.Errorf("nomad face: no listener")
	}
	unary, stream := grpcerr.Interceptors(grpcError)
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(f.cfg.MaxMessageBytes), grpc.MaxSendMsgSize(f.cfg.MaxMessageBytes),
		grpc.ChainUnaryInterceptor(f.obs.Unary, unary), grpc.ChainStreamInterceptor(f.obs.Stream, stream),
	)
	nomaddriver.RegisterDriverServer(s, f.server)
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	errs := make([]error, len(listeners)+1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.server.run(ctx); ctx.Err() == nil {
			errs[len(listeners)] = err
			cancel()
		}
	})
	limit := f.limits.Limit(connlimit.Options{Name: Name, Key: "face.nomad.max_connections", Max: f.cfg.MaxConnections})
	for i, l := range listeners {
		wg.Go(func() {
			defer cancel()
			if err := s.Serve(limit.Listen(l)); ctx.Err() == nil {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	if outer.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}
