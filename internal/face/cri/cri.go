// Package cri is the face that kubelet and crictl drive: RuntimeService and
// ImageService of the Kubernetes Container Runtime Interface, v1, on a unix
// socket.
//
// It turns requests into the engine's nouns and the engine's records into answers, and keeps
// nothing of its own: it stores the echoed parts of requests in each object's Data. It must not
// know anything below the engine. Start reading at server.go; then translate.go and status.go,
// which only convert values, and spec.go, which also reads files of the node.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri/alpha"
	"github.com/longshore/longshore/internal/face/cri/metric"
	"github.com/longshore/longshore/internal/face/cri/nri"
	"github.com/longshore/longshore/internal/face/cri/podcheckpoint"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/face/grpcerr"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/programs"
)

// Name is the face's name.
const Name = "cri"

// stopTimeout is how long calls in flight may take when the face stops.
const stopTimeout = 5 * time.Second

// window is the flow control window of a call and of a connection. A fixed one keeps gRPC from
// measuring the connection by a ping after each message: a write, a read and two wake-ups for every
// call.
const window = 1 << 20

// workers are the goroutines that wait for calls; further calls at the same time get one of their
// own each. A worker's stack has grown already: growing it was a quarter of what a short call took.
const workers = 8

// Options are the parameters of New.
type Options struct {
	face.Deps
	Config Config
	// ImageRoot is the directory or mount point that ImageUsage answers as
	// Path; kubelet finds a container's filesystem by it. "" leaves it out of
	// container figures.
	ImageRoot string
	// NRI hosts plugins; nil has none. See NewNRI.
	NRI *nri.Host
	// Checkpoint says why this node could make no checkpoints; nil: unknown.
	Checkpoint func(context.Context) error
	// Checkpoints returns a client's verbs of checkpoints; nil when the node has none.
	Checkpoints func(*engine.Client) core.CheckpointVerbs
	Archives    podcheckpoint.Images
	// WritableCgroups says why no container here can have writable cgroups, and returns nil if one can. Without it none
	// can.
	WritableCgroups func() error
	// Profiles has the seccomp profiles from registries; nil serves none.
	Profiles *secprofile.Store
	// Alpha is the engine as the owner of the objects of the API of 2017, and Programs its images
	// that are one file; both are needed where the config enables that API.
	Alpha    *engine.Client
	Programs *programs.Store
	// StateDir appears in a verbose Status; "" does not.
	StateDir string
}

// Face serves the CRI.
type Face struct {
	server  *server
	alpha   *alpha.Server // nil without the API of 2017
	second  *server       // of alpha; nil without
	scrapes *scrapes
	streams *stream.Server
	cfg     Config
	limits  *connlimit.Table
	obs     obs.GRPC
}

var _ face.Face = (*Face)(nil)

// New makes the face; it serves nothing yet. InvalidArgument when the config is
// wrong or something required is missing.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil {
		return nil, fmt.Errorf("cri face: engine and logger are required: %w", errdefs.ErrInvalidArgument)
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	if err := o.Config.checkSELinux(); err != nil {
		return nil, err
	}
	log := o.Logger.With(slog.String("face", Name))
	srv := newServer(o, o.Engine, log, variant{owner: core.OwnerCRI})
	srv.nri, srv.checkpoint, srv.profiles, srv.archives = o.NRI, o.Checkpoint, o.Profiles, o.Archives
	if o.Checkpoints != nil {
		srv.checkpoints = o.Checkpoints(o.Engine)
	}
	f := &Face{
		server: srv, scrapes: &scrapes{set: srv.stats.metrics, measure: srv.stats.measure, metrics: o.Counting()}, cfg: o.Config, limits: o.Limits,
		obs: obs.GRPC{Face: Name, Metrics: o.Counting(), Logger: log, Audit: o.Audit, Changes: changes},
	}
	all := servers{srv}
	if o.Config.Alpha.Enabled {
		if err := f.addAlpha(o, log); err != nil {
			return nil, err
		}
		all = append(all, f.second)
	}
	streams, err := stream.New(stream.Options{Config: o.Config.streams(), Backend: all, Logger: log, Face: Name, Metrics: o.Counting(), Limits: o.Limits})
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		s.urls = streams
	}
	f.streams = streams
	return f, nil
}

// changes reports whether a call changes an image or the configuration. The engine's verbs report the others.
func changes(op string) bool {
	switch op {
	case "PullImage", "RemoveImage", "UpdateRuntimeConfig":
		return true
	}
	return false
}

func newServer(o Options, e *engine.Client, log *slog.Logger, as variant) *server {
	writable := o.WritableCgroups
	if writable == nil {
		writable = func() error { return errors.New("unknown on this node") }
	}
	return &server{
		writable: writable,
		engine:   e, as: as, cfg: o.Config, log: log, node: node{o.Version, o.ImageRoot, o.StateDir},
		stats: &statsReader{engine: e, imageRoot: o.ImageRoot, metrics: metric.New()},
	}
}

// addAlpha adds the API of 2017, with a server of its own behind it. No plugin sees its pods: they
// would take them for kubelet's.
func (f *Face) addAlpha(o Options, log *slog.Logger) error {
	if o.Alpha == nil || o.Programs == nil {
		return fmt.Errorf("cri face: the api of 2017 needs an engine and programs: %w", errdefs.ErrInvalidArgument)
	}
	paths, err := alpha.NewPaths(o.Config.Alpha.RootDirectory)
	if err != nil {
		return err
	}
	log = log.With(slog.String("api", "cri1alpha"))
	f.second = newServer(o, o.Alpha, log, variant{owner: core.OwnerCRIAlpha, paths: paths, makes: o.Config.CreateMountSources, programs: o.Programs})
	f.second.cfg.SELinux = false // the API has no labels
	f.alpha = alpha.New(alpha.Options{Engine: o.Alpha, Runtime: f.second, Images: f.second, Paths: paths, Programs: o.Programs, Logger: log})
	return nil
}

// Open begins to listen for streams, so that a taken port is an error before anything serves; Serve
// does it otherwise.
func (f *Face) Open(ctx context.Context) error { return f.streams.Open(ctx) }

// Scrapes returns a handler that serves the metrics of pods and containers to
// Prometheus, with the names and labels of kubelet's /metrics/cadvisor.
func (f *Face) Scrapes() http.Handler { return f.scrapes }

// Name is "cri".
func (f *Face) Name() string { return Name }

// Serve answers both services on every listener until ctx ends.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return fmt.Errorf("cri face: no listener: %w", errdefs.ErrInvalidArgument)
	}
	unary, stream := grpcerr.Interceptors(grpcError)
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(f.cfg.MaxMessageBytes), grpc.MaxSendMsgSize(f.cfg.MaxMessageBytes),
		grpc.MaxConcurrentStreams(f.cfg.MaxCalls), grpc.NumStreamWorkers(workers),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.ChainUnaryInterceptor(f.obs.Unary, unary), grpc.ChainStreamInterceptor(f.obs.Stream, stream),
	)
	defer s.Stop() // its workers run from the first
	v1.RegisterRuntimeServiceServer(s, f.server)
	v1.RegisterImageServiceServer(s, f.server)
	if f.alpha != nil {
		f.alpha.Register(s)
	}
	healthv1.RegisterHealthServer(s, health.NewServer())

	if err := f.streams.Open(ctx); err != nil {
		return err
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := context.AfterFunc(ctx, func() { stop(s, handover.Drain(ctx, stopTimeout)) })
	defer done()
	unplug := f.plug(ctx, s)
	errs := make([]error, len(listeners)+1)
	var wg sync.WaitGroup
	// One that ends ends all: the face has failed.
	wg.Go(func() {
		defer cancel()
		errs[len(listeners)] = f.streams.Serve(ctx)
	})
	if f.alpha != nil {
		wg.Go(func() { f.alpha.Run(ctx) })
	}
	limit := f.limits.Limit(connlimit.Options{Name: Name, Key: "face.cri.max_connections", Max: f.cfg.MaxConnections})
	for i, l := range listeners {
		wg.Go(func() {
			defer cancel()
			if err := s.Serve(limit.Listen(l)); ctx.Err() == nil {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	errs = append(errs, unplug())
	f.server.background.Wait()
	if f.second != nil {
		f.second.background.Wait()
	}
	if outer.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// plug lets plugins connect until unplug is called, which returns the error of that. Pods must not
// be made unseen by plugins: without the plugins' host the face fails.
func (f *Face) plug(ctx context.Context, s *grpc.Server) (unplug func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := f.server.nri.Run(ctx, f.server.engine)
		if err != nil {
			s.Stop()
		}
		done <- err
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// stop lets calls in flight end, but not for ever: GetContainerEvents never
// would.
func stop(s *grpc.Server, patience time.Duration) {
	t := time.AfterFunc(patience, s.Stop)
	defer t.Stop()
	s.GracefulStop()
}
