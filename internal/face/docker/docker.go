// Package docker is the face of Docker's Engine API: it serves docker's command line, Compose, Testcontainers, Traefik and other
// clients of dockerd, on unix sockets and by TCP with certificates.
//
// Containers are pairs of the package solo, durable unless a client asked for their removal. A completed create request is stored with
// its container, and inspect shows it, so that clients can send it back. translate reads requests, view makes documents; images,
// networks, volumes, events, stats and system have the operations of their names. Start at Face.Serve and Face.routes.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/docker/events"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// Name is the face's name.
const Name = "docker"

// The versions of the Engine API that are served. Requests without a version get the highest.
const (
	MinVersion = "1.24"
	MaxVersion = "1.51"
	// EngineVersion is the version of dockerd that clients compare with.
	EngineVersion = "28.5.2"
)

// DefaultSocket is the path of the socket, unless the configuration has another.
const DefaultSocket = "/run/longshore/docker.sock"

// Config is the section [face.docker].
type Config struct {
	// Enabled runs this face.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket of the API. Its users are root on the node.
	Socket string `toml:"socket"`
	// Group may use the socket too, besides root. "" is none.
	Group string `toml:"group"`
	// ReadSocket is a unix socket for requests that list and inspect; "" is none. It hides environments.
	ReadSocket string `toml:"read_socket"`
	// ReadGroup may use the read socket.
	ReadGroup string `toml:"read_group"`
	// TCP is the host:port of a listener that answers all requests of clients with a certificate; "" is none.
	TCP string `toml:"tcp"`
	// TLSCert and TLSKey are PEM files of the TCP listener, and TLSClientCA has the authorities of its clients' certificates.
	TLSCert     string `toml:"tls_cert"`
	TLSKey      string `toml:"tls_key"`
	TLSClientCA string `toml:"tls_client_ca"`
	// Show has the owners of further containers that are shown, read-only: cli, cri, swarm, nomad, mesos, kata.
	Show []string `toml:"show"`
	// Manage has owners of Show. Clients may stop, kill and restart their containers, and run programs in them.
	Manage []string `toml:"manage"`
	// MaxConnections bounds the open connections of each socket. For more the idle ones are closed, the longest first; if each has a
	// request in progress, new connections wait.
	MaxConnections int `toml:"max_connections"`
}

// DefaultConfig has the defaults of the configuration file.
func DefaultConfig() Config { return Config{Socket: DefaultSocket, MaxConnections: 1024} }

// Validate returns InvalidArgument for values that cannot work.
func (c Config) Validate() error {
	switch {
	case !path.IsAbs(c.Socket):
		return invalid.Errorf("face.docker.socket %q is not an absolute path", c.Socket)
	case c.ReadSocket != "" && !path.IsAbs(c.ReadSocket):
		return invalid.Errorf("face.docker.read_socket %q is not an absolute path", c.ReadSocket)
	case c.ReadSocket == c.Socket:
		return invalid.Errorf("face.docker.read_socket is the same as face.docker.socket")
	case c.MaxConnections < 1:
		return invalid.Errorf("face.docker.max_connections %d is below 1", c.MaxConnections)
	}
	for _, owner := range c.Show {
		if !slices.Contains(showable(), owner) {
			return invalid.Errorf("face.docker.show: %q is none of %s", owner, strings.Join(showable(), ", "))
		}
	}
	for _, owner := range c.Manage {
		if !slices.Contains(c.Show, owner) {
			return invalid.Errorf("face.docker.manage: %q is not in face.docker.show", owner)
		}
	}
	return c.validateTCP()
}

// Options are the parameters of New. Node, Root and Networks are required, besides those of Deps.
type Options struct {
	face.Deps
	Config Config
	Node   *solo.Node
	// Root is the agent's root directory, for logs.
	Root string
	// Unified reports whether the node has cgroup v2.
	Unified func() bool
	// Transfers reads and writes archives of images, and sends images to registries.
	Transfers core.ImageTransfers
	// Paused stores which containers are paused for a commit.
	Paused core.KV
	// Removals stores the volumes of containers that are being removed. nil stores none.
	Removals core.KV
	// Execs stores execs for the next agent. nil stores none.
	Execs core.KV
	// Namespaces makes namespaces, for files of ended containers. nil if the agent cannot.
	Namespaces Namespaces
	// Networks manages the networks that users define.
	Networks solo.Networks
	// All is the engine with every owner's objects, if the configuration shows those of others; otherwise nil.
	All *engine.Client
	// Restart restarts a container of the command line, for Config.Manage.
	Restart func(context.Context, core.Container, engine.StopOptions) error
	// Others are the engine as other owners with containers on these networks see it.
	Others []*engine.Client
	// Bridge is the name of the default network's interface.
	Bridge string
	// Registry is the default registry of image names; "" is docker.io.
	Registry string
	// CgroupDriver is cgroupfs or systemd; "" is cgroupfs.
	CgroupDriver string
	// CDIDirs are the directories with the descriptions of CDI devices.
	CDIDirs []string
	// Swarm returns the node's membership of a Swarm; nil is none.
	Swarm func() dockertypes.Swarm
}

// Face serves Docker's Engine API.
type Face struct {
	o      Options
	own    *engine.Client
	solo   *solo.Service
	log    *slog.Logger
	events *events.Server
	execs  execs
	parts  parts

	changing sync.Mutex // serializes changes of stored requests
	requests requests

	mu      sync.Mutex                 // guards waiting
	waiting map[core.ID][]*pendingJoin // clients attached to containers that do not run
}

var _ face.Face = (*Face)(nil)

// New makes the face; it serves nothing yet.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil || o.Node == nil || o.Root == "" {
		return nil, invalid.Errorf("docker face: engine, logger, node and root are required")
	}
	if err := errors.Join(o.Config.Validate(), o.Config.CheckFiles()); err != nil {
		return nil, err
	}
	f := &Face{o: o, own: o.Engine, log: o.Logger.With(slog.String("face", Name)), waiting: map[core.ID][]*pendingJoin{}}
	f.events = &events.Server{Engine: others{f}.reads(), Shown: others{f}.shownOwners(), Describe: f.describe, Endpoints: f.endpoints, Logger: f.log, HidesEnv: hidesEnv}
	f.execs.f = f
	f.makeParts()
	var err error
	f.solo, err = solo.New(solo.Options{
		Node: o.Node, Owner: core.OwnerDocker, LogDir: filepath.Join(o.Root, "docker", "logs"), Logger: f.log, Find: f.find, Unified: o.Unified, Rest: true,
		Transfers: o.Transfers, Paused: o.Paused, Removals: o.Removals, Starting: f.join, Removed: f.abandon,
	})
	return f, err
}

// Name is "docker".
func (f *Face) Name() string { return Name }

// Serve answers on the listeners until ctx ends.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return invalid.Errorf("docker face: no listener")
	}
	var doors []door
	for _, l := range listeners {
		d, err := newDoor(l, f.o.Config, f.log)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return err
		}
		doors = append(doors, d)
	}
	if err := f.solo.Recover(ctx); err != nil {
		f.log.WarnContext(ctx, "could not remove all remnants of containers from an earlier agent", "error", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.execs.recover(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.solo.Serve(ctx) })
	wg.Go(func() {
		if err := f.events.Run(ctx); err != nil && ctx.Err() == nil {
			cancel(fmt.Errorf("follow events: %w", err))
		}
	})
	wg.Go(func() { f.execs.forget(ctx) })
	for i := range doors {
		d := &doors[i]
		wg.Go(func() {
			if err := dockerhttp.Serve(ctx, d, d.server(f)); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("serve %s: %w", d.Addr(), err))
			}
		})
	}
	<-ctx.Done()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
