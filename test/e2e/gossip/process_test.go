package gossip

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/test/e2e/gossip/peer"
)

// memberEnv makes this program a member of ours, which can be killed, in place of the tests.
const memberEnv = "LONGSHORE_GOSSIP_MEMBER"

func TestMain(m *testing.M) {
	if os.Getenv(memberEnv) == "" {
		os.Exit(m.Run())
	}
	if err := peer.Serve(os.Stdin, os.Stdout, &ours{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ours is a peer.Member by our own.
type ours struct{ *networkdb.DB }

func keysOf(list [][]byte) (keys []gossip.Key) {
	for _, k := range list {
		keys = append(keys, gossip.Key(k))
	}
	return keys
}

func (o *ours) Open(name string, at netip.AddrPort, keys [][]byte) (err error) {
	o.DB, err = networkdb.New(networkdb.Options{
		Name: name, Advertise: at.Addr(), Bind: at.Addr(), Port: at.Port(), Keys: keysOf(keys), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	return err
}

func (o *ours) Join(members []string) error {
	var list []netip.AddrPort
	for _, m := range members {
		list = append(list, netip.MustParseAddrPort(m))
	}
	return o.DB.Join(context.Background(), list)
}

func (o *ours) Enter(network string) error { return o.DB.Enter(context.Background(), network) }

func (o *ours) Announce(e peer.Entry, _ bool) error {
	r, err := gossip.Decode(e.Table, e.Value)
	if err != nil {
		return err
	}
	return o.DB.Announce(gossip.ID{Network: e.Network, Endpoint: e.Key}, r)
}

func (o *ours) Withdraw(e peer.Entry) error {
	r, err := gossip.Decode(e.Table, e.Value)
	if err != nil {
		return err
	}
	return o.DB.Withdraw(gossip.ID{Network: e.Network, Endpoint: e.Key}, r)
}

func (o *ours) Watch(network string, say func(e peer.Entry, gone bool)) error {
	go func() {
		for c := range o.DB.Watch(context.Background(), network) {
			if table, value, err := gossip.Encode(c.Record); err == nil {
				say(peer.Entry{Network: network, Table: table, Key: c.ID.Endpoint, Value: value}, c.Gone)
			}
		}
	}()
	return nil
}

func (o *ours) SetKeys(keys [][]byte) error { return o.DB.SetKeys(keysOf(keys)) }

// process is a gossip.Member that is a process.
type process struct {
	t    *testing.T
	kind kind
	name string
	at   netip.AddrPort
	cmd  *exec.Cmd

	mu      sync.Mutex // guards in, last, waiting, watches, entered, own
	in      *json.Encoder
	last    int
	waiting map[int]chan peer.Answer
	watches map[int]*inbox
	entered map[string]bool
	own     map[gossip.ID]map[string][]byte // by table
}

var _ gossip.Member = (*process)(nil)

// inbox holds the unread changes.
type inbox struct {
	mu   sync.Mutex // guards list
	list []peer.Change
	some chan struct{} // has one while list may have some
}

func (b *inbox) put(c peer.Change) {
	b.mu.Lock()
	b.list = append(b.list, c)
	b.mu.Unlock()
	select {
	case b.some <- struct{}{}:
	default:
	}
}

func (b *inbox) take() (list []peer.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, b.list = b.list, nil
	return list
}

// kind is a library of some version.
type kind struct {
	name    string
	program string // "": our own member
	netns   string // "": that of the tests
}

// start starts a process, which knows nobody, at an address where nobody listens.
func (k kind) start(t *testing.T, name string, at netip.AddrPort) *process {
	t.Helper()
	p, err := k.tryStart(t, name, at, gossiptest.Key)
	if err != nil {
		t.Fatalf("%s as %s: %v", name, k.name, err)
	}
	return p
}

func (k kind) tryStart(t *testing.T, name string, at netip.AddrPort, keys ...gossip.Key) (*process, error) {
	t.Helper()
	program := k.program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		program = self
	}
	p := &process{
		t: t, kind: k, name: name, at: at, waiting: map[int]chan peer.Answer{}, watches: map[int]*inbox{}, entered: map[string]bool{}, own: map[gossip.ID]map[string][]byte{},
	}
	p.cmd = exec.CommandContext(t.Context(), program)
	if k.netns != "" {
		p.cmd = exec.CommandContext(t.Context(), "nsenter", "--net="+k.netns, program)
	}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), memberEnv+"=1"), t.Output()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.in = json.NewEncoder(in)
	go p.listen(out)
	t.Cleanup(p.kill)
	_, err = p.do(peer.Order{Op: "open", Name: name, At: at, Keys: bytesOf(keys)})
	if err != nil {
		p.kill()
	}
	return p, err
}

func bytesOf(keys []gossip.Key) (list [][]byte) {
	for _, k := range keys {
		list = append(list, bytes.Clone(k[:]))
	}
	return list
}

// kill ends the process without a word to the others. It is idempotent.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// again starts the next process of a killed one.
func (p *process) again() *process {
	p.t.Helper()
	return p.kind.start(p.t, p.name, p.at)
}

// listen passes on the answers and changes that the process writes, until it ends.
func (p *process) listen(out io.Reader) {
	for dec := json.NewDecoder(out); ; {
		var a peer.Answer
		err := dec.Decode(&a)
		p.mu.Lock()
		if err != nil {
			for _, w := range p.waiting {
				close(w)
			}
			p.waiting = nil
			p.mu.Unlock()
			return
		}
		if a.Change != nil {
			box := p.watches[a.ID]
			p.mu.Unlock()
			box.put(*a.Change)
			continue
		}
		w := p.waiting[a.ID]
		delete(p.waiting, a.ID)
		p.mu.Unlock()
		w <- a
	}
}

// do has the process carry out an order.
func (p *process) do(o peer.Order) (peer.Answer, error) {
	p.mu.Lock()
	if p.waiting == nil {
		p.mu.Unlock()
		return peer.Answer{}, fmt.Errorf("%s has ended: %w", p.name, errdefs.ErrUnavailable)
	}
	answer := make(chan peer.Answer, 1)
	p.last++
	o.ID = p.last
	p.waiting[o.ID] = answer
	if o.Op == "watch" {
		p.watches[o.ID] = &inbox{some: make(chan struct{}, 1)}
	}
	err := p.in.Encode(o)
	p.mu.Unlock()
	if err != nil {
		return peer.Answer{}, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	a, ok := <-answer
	switch {
	case !ok:
		return a, fmt.Errorf("%s has ended: %w", p.name, errdefs.ErrUnavailable)
	case a.Err != "":
		return a, fmt.Errorf("%s: %w", a.Err, errdefs.ErrUnavailable)
	}
	a.ID = o.ID
	return a, nil
}

func (p *process) Join(_ context.Context, members []netip.AddrPort) error {
	var list []string
	for _, m := range members {
		list = append(list, m.String())
	}
	_, err := p.do(peer.Order{Op: "join", Join: list})
	return err
}

func (p *process) Enter(_ context.Context, network string) error {
	p.mu.Lock()
	there := p.entered[network]
	p.mu.Unlock()
	if there {
		return nil
	}
	_, err := p.do(peer.Order{Op: "enter", Network: network})
	p.mu.Lock()
	p.entered[network] = err == nil
	p.mu.Unlock()
	return err
}

// Begin is Enter: a process of another version does not say when it has begun.
func (p *process) Begin(ctx context.Context, network string) error { return p.Enter(ctx, network) }

func (p *process) Exit(network string) error {
	p.mu.Lock()
	there := p.entered[network]
	delete(p.entered, network)
	for id := range p.own {
		if id.Network == network {
			delete(p.own, id)
		}
	}
	p.mu.Unlock()
	if !there {
		return nil
	}
	_, err := p.do(peer.Order{Op: "exit", Network: network})
	return err
}

// entry returns a record in the form of the process's protocol.
func (p *process) entry(id gossip.ID, r gossip.Record) (peer.Entry, error) {
	table, value, err := gossip.Encode(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && !p.entered[id.Network] {
		err = fmt.Errorf("network %s is not entered: %w", id.Network, errdefs.ErrFailedPrecondition)
	}
	return peer.Entry{Network: id.Network, Table: table, Key: id.Endpoint, Value: value}, err
}

func (p *process) Announce(id gossip.ID, r gossip.Record) error {
	e, err := p.entry(id, r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.own[id] == nil {
		p.own[id] = map[string][]byte{}
	}
	old := p.own[id][e.Table]
	p.own[id][e.Table] = e.Value
	p.mu.Unlock()
	if bytes.Equal(old, e.Value) {
		return nil
	}
	ends := false
	if endpoint, ok := r.(gossip.Endpoint); ok && endpoint.Disabled {
		endpoint.Disabled = false
		_, before, err := gossip.Encode(endpoint)
		ends = err == nil && bytes.Equal(before, old)
	}
	_, err = p.do(peer.Order{Op: "announce", Entry: e, Ends: ends})
	return err
}

func (p *process) Withdraw(id gossip.ID, r gossip.Record) error {
	e, err := p.entry(id, r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.own[id], e.Table)
	p.mu.Unlock()
	_, err = p.do(peer.Order{Op: "withdraw", Entry: e})
	return err
}

func (p *process) Watch(ctx context.Context, network string) iter.Seq[gossip.Change] {
	return func(yield func(gossip.Change) bool) {
		a, err := p.do(peer.Order{Op: "watch", Network: network})
		if err != nil {
			p.t.Errorf("watch by %s: %v", p.name, err)
			return
		}
		p.mu.Lock()
		box := p.watches[a.ID]
		p.mu.Unlock()
		have := map[string]gossip.Record{}
		for {
			for _, c := range box.take() {
				at := c.Entry.Table + "/" + c.Entry.Key
				change := gossip.Change{ID: gossip.ID{Network: network, Endpoint: c.Entry.Key}, Record: have[at], Gone: c.Gone}
				if !c.Gone {
					if change.Record, err = gossip.Decode(c.Entry.Table, c.Entry.Value); err != nil {
						p.t.Errorf("%s was told %q: %v", p.name, c.Entry.Value, err)
						continue
					}
					have[at] = change.Record
				}
				if c.Gone {
					delete(have, at)
				}
				if change.Record != nil && !yield(change) {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-box.some:
			}
		}
	}
}

func (p *process) SetKeys(keys []gossip.Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("no keys: %w", errdefs.ErrInvalidArgument)
	}
	_, err := p.do(peer.Order{Op: "keys", Keys: bytesOf(keys)})
	return err
}

func (p *process) Members() []netip.Addr {
	a, err := p.do(peer.Order{Op: "members"})
	if err != nil {
		p.t.Errorf("members of %s: %v", p.name, err)
	}
	return a.Members
}

func (p *process) Leave() { _, _ = p.do(peer.Order{Op: "leave"}) }

// peersEnv names programs of other versions: name=path,…
const peersEnv = "LONGSHORE_GOSSIP_PEERS"

// kinds are our own and the others that there are.
func kinds(t *testing.T) []kind {
	t.Helper()
	list := []kind{{name: "longshore"}}
	for of := range strings.SplitSeq(os.Getenv(peersEnv), ",") {
		if of == "" {
			continue
		}
		name, program, ok := strings.Cut(of, "=")
		if !ok {
			t.Fatalf("%s: %q is not NAME=PATH", peersEnv, of)
		}
		list = append(list, kind{name: name, program: program})
	}
	return list
}
