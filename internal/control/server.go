package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/solo"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/disk"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/grpcerr"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/programs"
	"github.com/longshore/longshore/internal/trail"
)

// Options are the parameters of New. Engine, LogDir and Logger are required.
type Options struct {
	Engine *engine.Engine
	// LogDir is the directory for the output of the control API's own containers. It is created
	// when it is missing.
	LogDir string
	Logger *slog.Logger
	// Audit gets the calls that change something, and serves the trail's lines. nil has none.
	Audit *trail.Log
	// Disk measures the disk usage of all objects. nil returns Unimplemented.
	Disk func(context.Context) ([]*disk.Part, error)
	// Doctor checks the node; with try it also starts a container. nil returns Unimplemented.
	Doctor func(ctx context.Context, try bool) []Finding
	// Check compares records and node and returns the violations. nil returns Unimplemented. With
	// images it also compares the content of images with their digests.
	Check func(ctx context.Context, images bool) ([]Finding, error)
	// Config returns the configuration in force as TOML, secrets masked.
	Config func() (string, error)
	// LostOutput returns the number of bytes of a process's output that no sink stored. nil reports none.
	LostOutput func(context.Context, core.Ref) uint64
	// Processes returns the node's own processes. nil returns none.
	Processes func(context.Context) []Process
	// Upgrade has a process become the installed program, and returns its name, or nothing. The agent becomes it after the
	// answer. nil returns Unimplemented.
	Upgrade func(context.Context) ([]string, error)
	// UpgradeFailure says why the last upgrade of the agent failed. nil is never.
	UpgradeFailure func() string
	// Dirs are the node's directories, for the free space of their file systems.
	Dirs    []string
	Version string
	Started time.Time
	Metrics *obs.Metrics // nil counts nothing
	// HTTP serves the HTTP socket: metrics, health, pprof.
	HTTP http.Handler
	// Checkpoints returns a client's verbs of checkpoints; nil when the node has none.
	Checkpoints func(*engine.Client) core.CheckpointVerbs
	// Swarm is the node's membership in a Swarm; nil when the agent serves none.
	Swarm Membership
	// Transfers reads and writes archives of images, and sends images to registries.
	Transfers core.ImageTransfers
	// Programs are images that are one file; nil when the node has none.
	Programs *programs.Store
	// Paused stores which containers are paused for a commit, so that the next agent resumes them if this one dies. nil
	// stores nothing.
	Paused core.KV
	// Removals stores the anonymous volumes of containers that are being removed, for the next agent if this one dies. nil stores
	// nothing.
	Removals core.KV
	// Networks manages the networks that users define. It is nil if the agent cannot create networks.
	Networks solo.Networks
	// EgressLog returns the path of a sandbox's egress log; nil if there are none.
	EgressLog func(id core.ID) string
	// Node is shared with the other users of the package solo. nil makes one of Engine and Networks.
	Node *solo.Node
	// Namespaces makes namespaces. It is nil if the agent cannot.
	Namespaces func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)
	// Unified reports whether the node has cgroup v2. nil is false.
	Unified func() bool
	// Recent has the last output of containers without sinks. It is nil if the agent does not store it.
	Recent *logs.Recent
	// Restricted reports whether the server answers only calls that list and inspect. The result may change. nil
	// restricts nothing.
	Restricted func() bool
}

// Finding is one line of doctor or check.
type Finding struct {
	Name   string
	Status FindingStatus
	Detail string
	Hint   string // advice, "" if there is none
}

// Process is a process of the node's own.
type Process struct {
	Name    string
	Pid     int
	Version string // "" if unknown
	Path    string // the installed program
	State   ProcessState
}

// ProcessState compares a process's program with the installed one.
type ProcessState string

// The states of a Process; "" is unknown.
const (
	ProcessCurrent  ProcessState = "current"
	ProcessReplaced ProcessState = "replaced" // it runs another file than the installed one
)

// FindingStatus is the severity of a Finding.
type FindingStatus string

// The severities of a Finding.
const (
	FindingOK   FindingStatus = "ok"
	FindingWarn FindingStatus = "warn"
	FindingFail FindingStatus = "fail"
)

// Server is the control API.
type Server struct {
	o    Options
	own  *engine.Client // the owner "cli"
	all  *engine.Client // every owner
	node *solo.Node
	solo *solo.Service // the containers of the owner "cli"
}

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	switch {
	case o.Engine == nil:
		return nil, errors.New("control: no engine")
	case o.LogDir == "":
		return nil, errors.New("control: no log directory")
	case o.Logger == nil:
		return nil, errors.New("control: no logger")
	}
	s := &Server{o: o, own: o.Engine.As(core.OwnerCLI), all: o.Engine.All(), node: o.Node}
	if s.node == nil {
		s.node = solo.NewNode(o.Engine, o.Networks)
	}
	var err error
	s.solo, err = solo.New(solo.Options{
		Node: s.node, Owner: core.OwnerCLI, LogDir: o.LogDir, Logger: o.Logger, Find: s.container, Unified: o.Unified, Transfers: o.Transfers, Paused: o.Paused, Removals: o.Removals,
	})
	return s, err
}

// Listeners are the sockets of the server. Control is required.
type Listeners struct {
	Control net.Listener // everything, for root
	Read    net.Listener // only calls that read
	Board   net.Listener // the same, for programs
	HTTP    net.Listener // metrics, health, pprof
}

// drainTime is the time for calls in progress to end when the server stops.
const drainTime = 2 * time.Second

// Serve repairs the state after a crash, and then serves until ctx ends or a listener fails. It
// closes the listeners.
func (s *Server) Serve(ctx context.Context, l Listeners) error {
	if l.Control == nil {
		return errors.New("serve control: no listener")
	}
	if err := s.solo.Recover(ctx); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove all remnants of the control API's containers from an earlier agent", "error", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	serve := func(name string, fn func() error) {
		wg.Go(func() {
			if err := fn(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("serve %s: %w", name, err))
			}
		})
	}
	full := s.grpcServer(false)
	serve("control", func() error { return full.Serve(connlimit.Lasting(l.Control)) })
	stops := []func(){func() { stopGRPC(full, handover.Drain(ctx, drainTime)) }}
	for name, l := range map[string]net.Listener{"control read socket": l.Read, "control on the board": l.Board} {
		if l != nil {
			read := s.grpcServer(true)
			serve(name, func() error { return read.Serve(connlimit.Lasting(l)) })
			stops = append(stops, func() { stopGRPC(read, handover.Drain(ctx, drainTime)) })
		}
	}
	if l.HTTP != nil && s.o.HTTP != nil {
		srv := &http.Server{Handler: s.o.HTTP, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug)}
		serve("control http", func() error { return srv.Serve(connlimit.Lasting(l.HTTP)) })
		stops = append(stops, func() { _ = srv.Close() })
	}
	wg.Go(func() { s.solo.Serve(ctx) })

	<-ctx.Done()
	for _, stop := range stops {
		wg.Go(stop) // at once, because clients of all sockets wait for the next program
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Server) grpcServer(readOnly bool) *grpc.Server {
	watch := obs.GRPC{Face: "control", Metrics: s.o.Metrics, Logger: s.o.Logger, Changes: access.Changes, Client: access.Client}
	if s.o.Audit != nil {
		watch.Audit = s.o.Audit
	}
	gate := access.Gate{ReadOnly: readOnly, Restricted: s.o.Restricted}
	unary, stream := grpcerr.Interceptors(func(_ context.Context, err error) error { return grpcerr.Status(err, nil) })
	srv := grpc.NewServer(
		grpc.Creds(access.Credentials{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.WriteBufferSize(writeBuffer), // allocated only while a connection writes
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ChainUnaryInterceptor(watch.Unary, gate.Unary, unary),
		grpc.ChainStreamInterceptor(watch.Stream, gate.Stream, stream),
	)
	longshorev1.RegisterContainersServer(srv, &containerServer{srv: s})
	longshorev1.RegisterImagesServer(srv, &imageServer{srv: s})
	longshorev1.RegisterVolumesServer(srv, &volumeServer{srv: s})
	longshorev1.RegisterNetworksServer(srv, &networkServer{srv: s})
	longshorev1.RegisterNodeServer(srv, &nodeServer{srv: s})
	longshorev1.RegisterSwarmServer(srv, &swarmServer{srv: s})
	return srv
}

// The limits of one connection. Messages are small, because archives are sent in chunks, and a
// client that opens streams without end is stopped early.
const (
	maxMessage = 4 << 20
	// writeBuffer is the number of bytes that one system call sends to a client.
	writeBuffer = 128 << 10
	maxStreams  = 256
)

// stopGRPC waits a short time for calls in progress. Calls that follow output or events do not end by themselves and
// are cut off.
func stopGRPC(srv *grpc.Server, patience time.Duration) {
	done := make(chan struct{})
	go func() {
		srv.GracefulStop()
		close(done)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		srv.Stop()
		<-done
	}
}
