package nomad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/nomad/events"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/pull"
	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/face/nomad/stats"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
)

// server implements the Driver service. Each call is: find, translate, one or two
// verbs of the engine, encode.
type server struct {
	nomaddriver.UnimplementedDriverServer

	engine  *engine.Client
	log     *slog.Logger
	version string
	events  *events.Feed
	images  *pull.Images
	usage   *stats.Reader
	mhz     float64 // of a core, where Nomad does not tell it
}

func newServer(o Options, log *slog.Logger) *server {
	e := o.Engine
	feed := events.New(e, log)
	images := pull.New(e, feed, log, pull.Options{Archives: o.Archives, Registry: o.Registry, Helpers: o.Config.CredentialHelpers})
	return &server{
		engine: e, log: log, version: o.Version, events: feed, images: images, usage: stats.New(e), mhz: stats.NodeSpeed(),
	}
}

// run looks after images that no task uses, until ctx ends.
func (s *server) run(ctx context.Context) error {
	// An agent that died between a task's removal and that of its volumes has left these.
	if _, err := s.engine.Volumes.Prune(ctx, core.Volume.Anonymous); err != nil {
		s.log.WarnContext(ctx, "could not remove the unnamed volumes of removed tasks; longshore volume prune removes them", "error", err)
	}
	return s.images.Run(ctx)
}

// forgetVolumes removes the anonymous volumes of a removed container.
func (s *server) forgetVolumes(ctx context.Context, c core.Container) error {
	var errs []error
	for _, v := range c.Config.Volumes {
		if v.Labels[core.AnonymousLabel] == "" {
			continue
		}
		if err := s.engine.Volumes.Remove(ctx, v.Name); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Init implements the service; nothing is to be done.
func (s *server) Init(context.Context, *nomaddriver.InitRequest) (*nomaddriver.InitResponse, error) {
	return &nomaddriver.InitResponse{}, nil
}

// Shutdown implements the service: tasks live on without Nomad's agent.
func (s *server) Shutdown(context.Context, *nomaddriver.ShutdownRequest) (*nomaddriver.ShutdownResponse, error) {
	return &nomaddriver.ShutdownResponse{}, nil
}

// TaskConfigSchema implements the service.
func (s *server) TaskConfigSchema(context.Context, *nomaddriver.TaskConfigSchemaRequest) (*nomaddriver.TaskConfigSchemaResponse, error) {
	return &nomaddriver.TaskConfigSchemaResponse{Spec: schema.Spec(taskconf.Fields())}, nil
}

// Capabilities implements the service.
func (s *server) Capabilities(ctx context.Context, _ *nomaddriver.CapabilitiesRequest) (*nomaddriver.CapabilitiesResponse, error) {
	sess, err := plugin.Incoming(ctx)
	if err != nil {
		return nil, err
	}
	return plugin.Capabilities(sess.Name, sess.Config), nil
}

// fingerprintEvery is the interval of checks of the node.
const fingerprintEvery = 30 * time.Second

// Fingerprint implements the service: the driver's health now, and then whenever
// it has changed.
func (s *server) Fingerprint(_ *nomaddriver.FingerprintRequest, out nomaddriver.Driver_FingerprintServer) error {
	ctx := out.Context()
	sess, err := plugin.Incoming(ctx)
	if err != nil {
		return err
	}
	s.images.Sweep(ctx, sess)
	tick := time.NewTicker(fingerprintEvery)
	defer tick.Stop()
	last := ""
	for {
		f := s.fingerprint(ctx, sess)
		if now := f.String(); now != last {
			if err := out.Send(f); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *server) fingerprint(ctx context.Context, sess plugin.Session) *nomaddriver.FingerprintResponse {
	runtimes, err := s.engine.Runtimes(ctx)
	problem := "no runtime is configured"
	name := ""
	for _, r := range runtimes {
		if r.Default {
			problem, name = r.Problem, r.Name
		}
	}
	if err != nil {
		problem = err.Error()
	}
	f := &nomaddriver.FingerprintResponse{Health: nomaddriver.FingerprintResponse_HEALTHY, HealthDescription: "Healthy", Attributes: map[string]*nomadstructs.Attribute{}}
	if problem != "" {
		f.Health, f.HealthDescription = nomaddriver.FingerprintResponse_UNHEALTHY, problem+": see longshore doctor"
	}
	prefix := "driver." + sess.Name + "."
	text := func(key, value string) {
		f.Attributes[prefix+key] = &nomadstructs.Attribute{Value: &nomadstructs.Attribute_StringVal{StringVal: value}}
	}
	truth := func(key string, value bool) {
		f.Attributes[prefix+key] = &nomadstructs.Attribute{Value: &nomadstructs.Attribute_BoolVal{BoolVal: value}}
	}
	text("version", s.version)
	text("runtime", name)
	text("os_type", runtime.GOOS)
	text("logs", sess.Logs)
	truth("privileged.enabled", sess.AllowPrivileged)
	truth("volumes.enabled", sess.Volumes)
	return f
}

// task finds a task's container.
func (s *server) task(ctx context.Context, id string) (core.Container, error) {
	c, err := s.engine.ContainerByKey(ctx, core.Key(id))
	if errdefs.IsNotFound(err) || err == nil && (c.State == core.ContainerCreating || c.Removing) {
		return c, fmt.Errorf("%w: %s", errUnknownTask, id)
	}
	return c, err
}

func asked(call string) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerNomad, Call: call, At: time.Now()}
}

// taskName is the task's in ALLOC/TASK/SUFFIX.
func taskName(id string) string {
	if p := strings.Split(id, "/"); len(p) == 3 {
		return p[1]
	}
	return id
}
