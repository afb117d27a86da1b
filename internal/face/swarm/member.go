package swarm

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/session"
)

// member is the node in one Swarm, from joining to leaving or to the agent's end.
type member struct {
	face     *Face
	worker   *worker
	managers *session.Managers
	client   *session.Client
	describe *swarmv1.NodeDescription // without the certificate

	mu         sync.Mutex // guards identity, roots, wanted
	identity   *identity.Identity
	passphrase []byte           // of the identity's key; nil when that is not encrypted
	roots      []byte           // that the managers have named last
	wanted     swarmv1.NodeRole // the role that the managers want for the node

	stop    chan struct{} // closed to end the work
	stopped sync.Once
	ended   chan struct{} // closed when the work has ended
}

var _ session.Member = (*member)(nil)

func newMember(f *Face, id *identity.Identity, passphrase []byte) (*member, error) {
	known, err := records{f.o.KV}.managers()
	if err != nil {
		return nil, err
	}
	n := node(id.NodeID, f.o.Config)
	d, err := describe(n, f.o.Config, f.o.Version)
	if err != nil {
		return nil, err
	}
	m := &member{face: f, identity: id, passphrase: passphrase, managers: session.NewManagers(known), describe: d, stop: make(chan struct{}), ended: make(chan struct{})}
	reports := session.NewReports()
	m.worker = newWorker(f, n, reports)
	m.client = session.New(session.Options{
		Member: m, Worker: m.worker, Managers: m.managers, Reports: reports, Logger: f.log, Heartbeat: cmp.Or(m.worker.records.period(), f.o.Heartbeat),
	})
	m.worker.restarts.contact = m.client.Contact
	m.worker.nets = m.networks(id.NodeID)
	return m, nil
}

// work runs the node's tasks and stays in touch with the managers until ctx ends or the
// node leaves.
func (m *member) work(ctx context.Context) error {
	defer close(m.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case <-m.stop:
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	err := m.face.files().mount()
	if err == nil {
		err = m.worker.openVolumes(m.client.Described)
	}
	if err != nil {
		cancel()
		_ = group.Wait()
		return err
	}
	defer func() { _ = m.worker.volumes.Close() }()
	m.worker.nets.Start(ctx)
	defer m.worker.nets.Wait()
	if err := m.worker.resume(ctx); err != nil {
		if ctx.Err() != nil {
			err = nil // it was ended before it had begun
		}
		cancel()
		_ = group.Wait()
		m.worker.wait()
		if err == nil {
			return nil
		}
		return fmt.Errorf("resume the tasks of the swarm: %w", err)
	}
	m.worker.output.Begin(ctx)
	group.Go(func() error { return m.worker.watchEvents(ctx) })
	group.Go(func() error { return m.worker.images.run(ctx) })
	group.Go(func() error {
		m.askDrivers(ctx)
		m.client.Run(ctx)
		return nil
	})
	err = group.Wait()
	m.worker.output.Wait()
	m.worker.wait()
	return err
}

// driversTime is how long the first session waits for the drivers of cluster volumes:
// without one that answers later the managers would think for a while that the node has
// lost it.
const driversTime = 2 * time.Second

func (m *member) askDrivers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, driversTime)
	defer cancel()
	m.worker.volumes.Asked(ctx)
}

// end ends the work and waits until it has; joined is where the member waits for it to
// begin.
func (m *member) end(ctx context.Context, joined <-chan *member) error {
	m.stopped.Do(func() { close(m.stop) })
	select {
	case <-joined: // it never began
		return nil
	default:
	}
	select {
	case <-m.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) status() Status {
	id := m.Identity()
	s := Status{NodeID: id.NodeID, ClusterID: id.ClusterID, CertificateBegins: id.NotBefore, CertificateEnds: id.NotAfter, Tasks: m.worker.count(), Overlays: m.worker.nets.Status()}
	for _, p := range m.managers.All() {
		s.Managers = append(s.Managers, p.Addr)
	}
	phase, manager, err := m.client.State()
	s.Session, s.Manager = string(phase), manager
	m.mu.Lock()
	wanted := m.wanted
	m.mu.Unlock()
	switch {
	case err != nil:
		s.Error = err.Error()
	case wanted == swarmv1.NodeRole_MANAGER:
		s.Error = "the swarm wants this node to be a manager, which it cannot be: docker node demote " + id.NodeID
	}
	s.Expired = id.Expired(time.Now())
	return s
}

// Identity implements session.Member.
func (m *member) Identity() *identity.Identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.identity
}

// Describe implements session.Member.
func (m *member) Describe() *swarmv1.NodeDescription {
	d := proto.CloneOf(m.describe)
	d.TlsInfo = m.Identity().TLSInfo()
	d.CsiInfo = m.worker.volumes.Describe()
	if m.worker.node.Ingress == IngressHost || m.worker.nets.Able() == nil {
		d.Engine.Plugins = append(d.Engine.Plugins, overlayPlugin())
	}
	return d
}

// Configured implements session.Member: it stores the managers' addresses and root certificates.
func (m *member) Configured(msg *swarmv1.SessionMessage) error {
	if m.managers.Replace(msg.GetManagers()) {
		if err := (records{m.face.o.KV}).putManagers(m.managers.All()); err != nil {
			return err
		}
	}
	m.worker.nets.Configure(msg)
	m.mu.Lock()
	defer m.mu.Unlock()
	if wanted := msg.GetNode().GetSpec().GetDesiredRole(); wanted != m.wanted {
		m.wanted = wanted
		m.face.log.Warn("the swarm wants the node to have another role; it can be a worker only", "role", wanted.String())
	}
	if len(msg.GetRootCA()) == 0 {
		return nil
	}
	next, err := m.identity.WithRoots(msg.GetRootCA())
	if err != nil {
		m.face.log.Warn("refused the root certificates of a manager", "error", err)
		return nil
	}
	m.roots = msg.GetRootCA()
	return m.keep(next)
}

// Renewed implements session.Member.
func (m *member) Renewed(id *identity.Identity) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.roots) > 0 { // the roots may have changed since the request
		if next, err := id.WithRoots(m.roots); err == nil {
			id = next
		}
	}
	return m.keep(id)
}

// Paced implements session.Member: a node that boots without a manager knows by it when they
// give it up.
func (m *member) Paced(period time.Duration) {
	if err := m.worker.records.putPeriod(period); err != nil {
		m.face.log.Error("could not store the managers' heartbeat interval for the agent's next start", "error", err)
	}
}

// Expired implements session.Member.
func (m *member) Expired(err error) {
	if err := engine.Tell(m.worker.engine, err.Error()); err != nil {
		m.face.log.Error("could not store an event", "error", err)
	}
}

// keep has another identity from now on. Preconditions: mu is held.
func (m *member) keep(id *identity.Identity) error {
	if id == m.identity {
		return nil
	}
	if err := id.Save(m.face.identityFile(), m.passphrase); err != nil {
		return err
	}
	m.identity = id
	return nil
}
