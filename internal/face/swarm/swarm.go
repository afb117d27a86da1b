// Package swarm is the face for managers of a Swarm: the node joins one by its token, and runs the
// tasks that the managers assign to it.
//
// It dials, and listens nowhere. A task is a sandbox with one container, both by the task's id as
// their key. The statuses of a task are stored before they are reported; secrets are kept in memory
// and on a tmpfs alone. It must not know anything below the engine. Start reading at Face.Serve and
// worker.go; stepper, assignment and translate are pure.
package swarm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/invalid"
)

// Name is the face's name.
const Name = "swarm"

// Options are the parameters of New.
type Options struct {
	face.Deps // with a KV
	Config    Config
	// Root has the files that outlive a boot: the node's identity and the output of tasks. State
	// has the tmpfs with secrets. Both are directories of the face's own.
	Root, State string
	// MountFiles mounts the tmpfs at a directory; nil does, and only root can. A test
	// hands in one that leaves the machine as it is.
	MountFiles func(dir string) error
	// Overlays are the node's networks over several nodes; nil where there are none.
	Overlays overlays.Port
	// Gossip makes the node's part in the gossip of overlay networks; nil where there are none.
	Gossip overlays.Gossip
	// Memory keeps the keys of overlay networks for the next agent; nil where nothing does.
	Memory core.Holder
	// FailPoint is called at each of overlays.Stages, in tests; nil otherwise.
	FailPoint func(stage string) error
	// Heartbeat is the time between two heartbeats until a manager says it; 0 is that of
	// managers. After three of them without one the node counts as cut off.
	Heartbeat time.Duration
}

// Face is the node as a worker.
type Face struct {
	o   Options
	log *slog.Logger

	change sync.Mutex // serializes joining and leaving
	mu     sync.Mutex // guards member, broken
	member *member    // nil while the node is in no Swarm
	broken error      // why the membership could not be read
	// joined hands a new member to Serve.
	joined chan *member
}

var _ face.Face = (*Face)(nil)

// New makes the face; it does nothing yet. InvalidArgument when the config is wrong or
// something required is missing.
func New(o Options) (*Face, error) {
	if o.Engine == nil || o.Logger == nil || o.KV == nil || !filepath.IsAbs(o.Root) || !filepath.IsAbs(o.State) {
		return nil, invalid.Errorf("swarm face: engine, logger, KV, root and state are required")
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	return &Face{o: o, log: o.Logger.With(slog.String("face", Name)), joined: make(chan *member, 1)}, nil
}

// Name is "swarm".
func (f *Face) Name() string { return Name }

// Serve works for the Swarm that the node is in, or joins, until ctx ends. Tasks run on.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) > 0 {
		return invalid.Errorf("swarm face: it dials, and listens nowhere")
	}
	m, err := f.load()
	f.mu.Lock()
	f.broken = err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if m != nil {
		f.setMember(m)
	}
	for {
		if m != nil {
			if err := m.work(ctx); err != nil || ctx.Err() != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case m = <-f.joined:
		}
	}
}

func (f *Face) setMember(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.member = m
}

// load reads which Swarm the node is in; nil is none.
func (f *Face) load() (*member, error) {
	if _, err := os.Stat(f.identityFile()); errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // in none
	}
	passphrase, err := identity.ReadPassphrase(f.o.Config.KeyPassphraseFile)
	if err != nil {
		return nil, err
	}
	id, sealed, err := identity.Load(f.identityFile(), passphrase)
	if err != nil {
		return nil, err
	}
	if !sealed && len(passphrase) > 0 { // the passphrase came since then
		if err := id.Save(f.identityFile(), passphrase); err != nil {
			return nil, err
		}
	}
	return newMember(f, id, passphrase)
}

func (f *Face) identityFile() string { return filepath.Join(f.o.Root, "identity.json") }

// JoinRequest asks to join a Swarm.
type JoinRequest struct {
	Addr         string // host:port of a manager
	Token        string // never kept
	Availability string // "active", "pause" or "drain"; "" is active
}

// Status is the node's membership.
type Status struct {
	NodeID, ClusterID string // "" while the node is in no Swarm
	Session           string // "up" or "down"
	Manager           string // the session's
	Managers          []string
	Error             string // why there is no session
	Tasks             int
	CertificateBegins time.Time // zero while the node is in no Swarm
	CertificateEnds   time.Time
	Expired           bool // the certificate has
	Overlays          overlays.Status
}

// Join makes the node a worker of a Swarm. FailedPrecondition when it is in one.
func (f *Face) Join(ctx context.Context, r JoinRequest) (Status, error) {
	f.change.Lock()
	defer f.change.Unlock()
	f.mu.Lock()
	member, broken := f.member, f.broken
	f.mu.Unlock()
	switch {
	case broken != nil:
		return Status{}, fmt.Errorf("join: leave the swarm first: %w: %w", errdefs.ErrFailedPrecondition, broken)
	case member != nil:
		return Status{}, fmt.Errorf("join: the node is in swarm %s already, leave that first: %w", member.Identity().ClusterID, errdefs.ErrFailedPrecondition)
	}
	token, err := identity.ParseToken(r.Token)
	if err != nil {
		return Status{}, err
	}
	if token.FIPS {
		return Status{}, invalid.Errorf("the swarm admits only nodes with FIPS cryptography, which this node lacks")
	}
	if _, _, err := net.SplitHostPort(r.Addr); err != nil {
		return Status{}, invalid.Errorf("manager %q is not HOST:PORT", r.Addr)
	}
	availability, err := readAvailability(r.Availability)
	if err != nil {
		return Status{}, err
	}
	passphrase, err := identity.ReadPassphrase(f.o.Config.KeyPassphraseFile)
	if err != nil {
		return Status{}, fmt.Errorf("join: %w", err)
	}
	id, err := identity.Join(ctx, identity.Request{Addr: r.Addr, Token: token, Availability: availability})
	if err != nil {
		return Status{}, err
	}
	if err := os.MkdirAll(f.o.Root, 0o700); err != nil {
		return Status{}, fmt.Errorf("join: %w", err)
	}
	if err := (records{f.o.KV}).putManagers([]session.Peer{{Addr: r.Addr}}); err != nil {
		return Status{}, err
	}
	if err := id.Save(f.identityFile(), passphrase); err != nil {
		return Status{}, err
	}
	m, err := newMember(f, id, passphrase)
	if err != nil {
		return Status{}, err
	}
	f.setMember(m)
	f.joined <- m // nobody else joins, and there was none
	return m.status(), nil
}

func readAvailability(s string) (swarmv1.NodeSpec_Availability, error) {
	switch s {
	case "", "active":
		return swarmv1.NodeSpec_ACTIVE, nil
	case "pause":
		return swarmv1.NodeSpec_PAUSE, nil
	case "drain":
		return swarmv1.NodeSpec_DRAIN, nil
	}
	return 0, invalid.Errorf("availability %q is none of active, pause, drain", s)
}

// Leave ends the membership: its tasks are stopped and removed with all that they have.
// The managers learn of it by the missing heartbeats. It succeeds when the node is in no
// Swarm.
func (f *Face) Leave(ctx context.Context) error {
	f.change.Lock()
	defer f.change.Unlock()
	f.mu.Lock()
	m := f.member
	f.mu.Unlock()
	if m != nil {
		if err := m.end(ctx, f.joined); err != nil {
			return fmt.Errorf("leave the swarm: %w", err)
		}
		m.worker.nets.Leave()
	}
	if err := f.clear(ctx); err != nil {
		return fmt.Errorf("leave the swarm: %w", err)
	}
	f.mu.Lock()
	f.member, f.broken = nil, nil
	f.mu.Unlock()
	return nil
}

// clear removes everything of a membership, the identity last: a failed step can be repeated.
func (f *Face) clear(ctx context.Context) error {
	sandboxes, err := f.o.Engine.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range sandboxes {
		errs = append(errs, f.removeTask(ctx, string(sb.Key)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := overlays.Clear(ctx, f.o.Overlays, f.o.Memory); err != nil {
		return err
	}
	if err := f.clearVolumes(ctx); err != nil {
		return err
	}
	if err := (records{f.o.KV}).clear(); err != nil {
		return err
	}
	if err := f.files().unmount(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(f.logs()), os.RemoveAll(f.outputFile())); err != nil {
		return err
	}
	if err := os.Remove(f.identityFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Status tells of the membership.
func (f *Face) Status() Status {
	f.mu.Lock()
	m, broken := f.member, f.broken
	f.mu.Unlock()
	switch {
	case m != nil:
		return m.status()
	case broken != nil:
		return Status{Session: string(session.Down), Error: broken.Error()}
	}
	return Status{}
}

func (f *Face) logs() string { return filepath.Join(f.o.Root, "logs") }

// outputFile is where it is kept how far the output of tasks was sent to managers.
func (f *Face) outputFile() string { return filepath.Join(f.o.State, "output.json") }

func (f *Face) files() files {
	return files{dir: filepath.Join(f.o.State, "files"), mountAt: f.o.MountFiles}
}
