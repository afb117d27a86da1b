// Package solo has containers with a sandbox each: those of the command line and of Docker's API.
// It has everything between a request for a container and the engine's verbs: checks, joined namespaces, links, volumes of other
// containers, restarts by hand, the removal with sandbox, log and anonymous volumes, health checks, and the names that resolve on the
// networks that users define.
//
// A Node has the parts that are common to all owners, a Service the containers of one owner. translate makes configurations of
// requests. Start at Service.Prepare.
package solo

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/keylock"
)

// Networks manages the networks that users define.
type Networks interface {
	Define(ctx context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error)
	Defined() []core.NetworkDefinition
	Undefine(ctx context.Context, name string) error
	// SetNames sets the records of a network's name server.
	SetNames(ctx context.Context, network string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
}

// Node is shared by all services of a node. Make it by NewNode.
type Node struct {
	engine   *engine.Engine
	networks Networks // nil if the agent cannot create networks
	// publishing serializes updates of name servers.
	publishing sync.Mutex
}

// NewNode returns a Node over an engine. networks is nil if the agent cannot create networks.
func NewNode(e *engine.Engine, networks Networks) *Node { return &Node{engine: e, networks: networks} }

// owners returns the owners of containers with a sandbox each.
func owners() []core.Owner { return []core.Owner{core.OwnerCLI, core.OwnerDocker} }

// Options are the parameters of a service. Node, Owner, LogDir, Logger and Find are required.
type Options struct {
	Node  *Node
	Owner core.Owner
	// LogDir is the directory for the output of the owner's containers. It is created when it is missing.
	LogDir string
	Logger *slog.Logger
	// Find finds a container, also another owner's, by the name that a request has for it.
	Find func(ctx context.Context, name string) (core.Container, error)
	// Starting, if set, is called before the program of a container is started by a request, when its process exists, and again after
	// the start.
	Starting func(context.Context, core.ID)
	// Removed, if set, is called after the removal of a container.
	Removed func(core.ID)
	// Rest creates containers without addresses and ports, which they get with their start. So one with the same ports may run
	// meanwhile, and the container of a joined network need not.
	Rest bool
	// Unified reports whether the node has cgroup v2. nil is false.
	Unified func() bool
	// Transfers makes images of containers.
	Transfers core.ImageTransfers
	// Paused stores which containers are paused for a commit, so that the next agent resumes them if this one dies. nil
	// stores nothing.
	Paused core.KV
	// Removals stores the anonymous volumes of containers that are being removed, so that the next agent removes them if this one dies.
	// nil stores nothing.
	Removals core.KV
}

// Service has the containers of one owner.
type Service struct {
	o        Options
	own      *engine.Client // the owner's
	all      *engine.Client // every owner's
	node     *Node
	sessions sessions
	// settling has a lock for each container. It serializes the settlement of an ended container with its next start.
	settling keylock.Map[core.ID]
}

// New returns a service that does nothing before Recover and Serve.
func New(o Options) (*Service, error) {
	switch {
	case o.Node == nil:
		return nil, errors.New("solo: no node")
	case o.LogDir == "":
		return nil, errors.New("solo: no log directory")
	case o.Logger == nil:
		return nil, errors.New("solo: no logger")
	}
	s := &Service{o: o, own: o.Node.engine.As(o.Owner), all: o.Node.engine.All(), node: o.Node}
	s.sessions.orphans = make(chan core.ID, maxOrphans)
	return s, nil
}

// Serve settles ended containers, makes health checks, and updates names and links, until ctx ends.
func (s *Service) Serve(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.sweep(ctx) })
	wg.Go(func() { s.drain(ctx) })
	wg.Go(func() { s.checkHealth(ctx) })
	wg.Go(func() { s.followLinks(ctx) })
	if s.node.networks != nil {
		wg.Go(func() { s.followNames(ctx) })
	}
	wg.Wait()
}
