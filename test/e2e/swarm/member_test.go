package swarm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// memberEnv makes this program a member of the gossip in place of the tests: it can be killed, and
// it is in a network namespace of its own.
const memberEnv = "LONGSHORE_GOSSIP_MEMBER"

func TestMain(m *testing.M) {
	if os.Getenv(memberEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serveMember(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// order is a request of the test to a member's process.
type order struct {
	Op      string // new, keys, open, attach, join, enter, watch, prune, announce, withdraw, members
	New     networkdb.Options
	Keys    []sealKey // of encrypted data paths, opened later
	Dir     string    // of data paths
	Open    vxlan.Definition
	Path    string // of a namespace
	Attach  vxlan.Attachment
	Join    []netip.AddrPort
	Network string // of attach only when several are open
	ID      gossip.ID
	Record  wireRecord
}

// sealKey is an vxlan.Key, which does not show itself in documents.
type sealKey struct {
	Key [16]byte
	ID  uint32
}

func overlayKeys(list []sealKey) (keys []vxlan.Key) {
	for _, k := range list {
		keys = append(keys, vxlan.Key(k))
	}
	return keys
}

// wireRecord is a gossip.Record.
type wireRecord struct {
	Peer     *gossip.Peer
	Endpoint *gossip.Endpoint
}

func (w wireRecord) record() gossip.Record {
	if w.Peer != nil {
		return *w.Peer
	}
	return *w.Endpoint
}

func onWire(r gossip.Record) wireRecord {
	switch r := r.(type) {
	case gossip.Peer:
		return wireRecord{Peer: &r}
	case gossip.Endpoint:
		return wireRecord{Endpoint: &r}
	}
	return wireRecord{}
}

// answer is a message of the process: an order's result, or a change of a record.
type answer struct {
	Err     string
	Members []netip.Addr
	Change  *wireChange
}

type wireChange struct {
	ID     gossip.ID
	Record wireRecord
	Gone   bool
}

// serveMember carries out orders until there are no more. It dies without a word to the others.
func serveMember(in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	say := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(a)
	}
	var m *networkdb.DB
	var path *vxlan.Network // the one that was opened last
	paths := map[string]*vxlan.Network{}
	var keys *vxlan.Keyring
	ctx := context.Background()
	dec := json.NewDecoder(bufio.NewReader(in))
	for {
		var o order
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		switch o.Op {
		case "new":
			o.New.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
			m, err = networkdb.New(o.New)
		case "join":
			err = m.Join(ctx, o.Join)
		case "enter":
			err = m.Enter(ctx, o.Network)
		case "keys":
			if keys == nil {
				keys, err = vxlan.NewKeyring(slog.New(slog.NewTextHandler(os.Stderr, nil)))
			}
			if err == nil {
				err = keys.SetKeys(overlayKeys(o.Keys))
			}
		case "open":
			o.Open.Keys = keys
			path, err = vxlan.Open(o.Dir, o.Open, slog.New(slog.NewTextHandler(os.Stderr, nil)))
			paths[o.Open.Name] = path
		case "attach":
			on := path
			if o.Network != "" {
				on = paths[o.Network]
			}
			_, err = on.Attach(o.Path, o.Attach)
		case "prune":
			err = path.Prune()
		case "watch":
			on := paths[o.Network]
			go func() {
				for c := range m.Watch(ctx, o.Network) {
					if on != nil {
						follow(on, c)
					}
					say(answer{Change: &wireChange{c.ID, onWire(c.Record), c.Gone}})
				}
			}()
		case "announce":
			err = m.Announce(o.ID, o.Record.record())
		case "withdraw":
			err = m.Withdraw(o.ID, o.Record.record())
		case "members":
			a.Members = m.Members()
		default:
			err = fmt.Errorf("order %q", o.Op)
		}
		if err != nil {
			a.Err = err.Error()
		}
		say(a)
	}
}

// follow updates a data path with the gossip's changes of other nodes' interfaces.
func follow(path *vxlan.Network, c gossip.Change) {
	peer, ok := c.Record.(gossip.Peer)
	if !ok {
		return
	}
	err := path.DropPeer(c.ID.Endpoint)
	if !c.Gone {
		err = path.SetPeer(c.ID.Endpoint, vxlan.Peer{Addr: peer.Addr.Addr(), MAC: peer.MAC, Node: peer.Tunnel})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// member is a process of a member.
type member struct {
	t       *testing.T
	cmd     *exec.Cmd
	orders  *json.Encoder
	answers chan answer

	mu  sync.Mutex // guards has
	has map[gossip.ID][]gossip.Record
}

// startMember starts one in a network namespace.
func startMember(t *testing.T, netns string) *member {
	t.Helper()
	m := &member{t: t, answers: make(chan answer, 1), has: map[gossip.ID][]gossip.Record{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd = exec.CommandContext(t.Context(), "nsenter", "--net="+netns, self)
	m.cmd.Env, m.cmd.Stderr = append(os.Environ(), memberEnv+"=1"), t.Output()
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := m.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.orders = json.NewEncoder(in)
	go m.listen(out)
	t.Cleanup(m.kill)
	return m
}

// kill ends the process without a word to the others.
func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

func (m *member) listen(out io.Reader) {
	defer close(m.answers)
	dec := json.NewDecoder(out)
	for {
		var a answer
		if dec.Decode(&a) != nil {
			return
		}
		if a.Change == nil {
			m.answers <- a
			continue
		}
		m.mu.Lock()
		r := a.Change.Record.record()
		list := slices.DeleteFunc(m.has[a.Change.ID], func(o gossip.Record) bool { return (onWire(o).Peer == nil) == (onWire(r).Peer == nil) })
		if !a.Change.Gone {
			list = append(list, r)
		}
		m.has[a.Change.ID] = list
		m.mu.Unlock()
	}
}

// do carries out an order, which must succeed.
func (m *member) do(o order) answer {
	m.t.Helper()
	if err := m.orders.Encode(o); err != nil {
		m.t.Fatal(err)
	}
	a, ok := <-m.answers
	if !ok || a.Err != "" {
		m.t.Fatalf("%s: %s", o.Op, a.Err)
	}
	return a
}

func (m *member) announce(id gossip.ID, records ...gossip.Record) {
	m.t.Helper()
	for _, r := range records {
		m.do(order{Op: "announce", ID: id, Record: onWire(r)})
	}
}

func (m *member) withdraw(id gossip.ID, records ...gossip.Record) {
	m.t.Helper()
	for _, r := range records {
		m.do(order{Op: "withdraw", ID: id, Record: onWire(r)})
	}
}

// peers are those that it has heard of, endpoints too.
func (m *member) peers() (list []gossip.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, records := range m.has {
		for _, r := range records {
			if p, ok := r.(gossip.Peer); ok {
				list = append(list, p)
			}
		}
	}
	return list
}

func (m *member) endpoints() (list []gossip.Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, records := range m.has {
		for _, r := range records {
			if e, ok := r.(gossip.Endpoint); ok {
				list = append(list, e)
			}
		}
	}
	return list
}

// plainWorker is a worker of a Swarm that announces overlay networks, and runs nothing: the test
// reads its assignments.
type plainWorker struct {
	t  *testing.T
	id *identity.Identity

	mu    sync.Mutex // guards keys, seal, node, tasks
	keys  []gossip.TimedKey
	seal  []gossip.TimedKey // of encrypted data paths
	node  *swarmv1.Node
	tasks map[string]*swarmv1.Task
}

var (
	_ session.Member = (*plainWorker)(nil)
	_ session.Worker = (*plainWorker)(nil)
)

// startPlainWorker joins a Swarm as a node at the address that the manager sees.
func startPlainWorker(t *testing.T, m *manager) *plainWorker {
	t.Helper()
	token, err := identity.ParseToken(m.Token)
	if err != nil {
		t.Fatal(err)
	}
	w := &plainWorker{t: t, tasks: map[string]*swarmv1.Task{}}
	if w.id, err = identity.Join(t.Context(), identity.Request{Addr: m.Address, Token: token}); err != nil {
		t.Fatal(err)
	}
	c := session.New(session.Options{
		Member: w, Worker: w, Managers: session.NewManagers([]session.Peer{{Addr: m.Address}}), Reports: session.NewReports(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *plainWorker) Identity() *identity.Identity { return w.id }
func (w *plainWorker) Describe() *swarmv1.NodeDescription {
	return &swarmv1.NodeDescription{
		Hostname: "plain", Platform: &swarmv1.Platform{Architecture: "x86_64", Os: "linux"}, Resources: &swarmv1.Resources{NanoCpus: 1e9, MemoryBytes: 1 << 30},
		Engine: &swarmv1.EngineDescription{Plugins: []*swarmv1.PluginDescription{{Type: "Network", Name: "overlay"}}},
	}
}
func (w *plainWorker) Registered() {}
func (w *plainWorker) Listen(ctx context.Context, _ swarmv1.LogBrokerClient) error {
	<-ctx.Done()
	return ctx.Err()
}
func (w *plainWorker) Expired(error)                    {}
func (w *plainWorker) Paced(time.Duration)              {}
func (w *plainWorker) Renewed(*identity.Identity) error { return nil }

func (w *plainWorker) Configured(m *swarmv1.SessionMessage) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys, w.seal, w.node = nil, nil, m.GetNode()
	for _, k := range m.GetNetworkBootstrapKeys() {
		switch timed := (gossip.TimedKey{Key: k.GetKey(), Time: k.GetLamportTime()}); k.GetSubsystem() {
		case "networking:gossip":
			w.keys = append(w.keys, timed)
		case "networking:ipsec":
			w.seal = append(w.seal, timed)
		}
	}
	return nil
}

func (w *plainWorker) Assigned(m *swarmv1.AssignmentsMessage, _ bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range m.GetChanges() {
		if task := c.GetAssignment().GetTask(); task != nil {
			if c.GetAction() == swarmv1.AssignmentChange_REMOVE {
				delete(w.tasks, task.GetId())
			} else {
				w.tasks[task.GetId()] = task
			}
		}
	}
	return nil
}

// keyring waits until a manager has told the keys.
func (w *plainWorker) keyring() (keys []gossip.Key) {
	w.t.Helper()
	roottest.Eventually(w.t, "the manager tells the keys", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		var err error
		keys, err = gossip.Keyring(w.keys)
		return err == nil
	})
	return keys
}

// sealKeys waits until a manager has told the keys of encrypted data paths.
func (w *plainWorker) sealKeys() (keys []sealKey) {
	w.t.Helper()
	w.keyring()
	w.mu.Lock()
	defer w.mu.Unlock()
	order, err := gossip.Keyring(w.seal)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range order {
		for _, timed := range w.seal {
			if gossip.Key(timed.Key) == key {
				keys = append(keys, sealKey{key, uint32(timed.Time)})
			}
		}
	}
	return keys
}

// task waits for the task of a service.
func (w *plainWorker) task(service string) (task *swarmv1.Task) {
	w.t.Helper()
	roottest.Eventually(w.t, "a task of "+service, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, t := range w.tasks {
			if t.GetServiceAnnotations().GetName() == service && t.GetDesiredState() <= swarmv1.TaskState_RUNNING {
				task = t
			}
		}
		return task != nil
	})
	return task
}
