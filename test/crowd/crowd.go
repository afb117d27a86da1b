// Package crowd is the many other nodes of a large Swarm, for measuring a node among them: each is a member
// of the gossip by memberlist itself, and answers, relays and synchronizes networks as Docker's networkdb
// does. Their common knowledge is stored once, and they exchange no messages that other nodes would not
// notice, so that hundreds of them take little of the machine; each other node is probed and queried as
// often as by so many.
//
// Start at New; wire.go has the messages, echo.go the packets of the network.
package crowd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// The times of Docker's networkdb.
const (
	gossipEvery = 200 * time.Millisecond
	probeEvery  = time.Second
	syncEvery   = 30 * time.Second
	stateEvery  = 2 * time.Minute // with so many members; each 30 s with few
	fanOut      = 3               // how many others get news at a time
	packet      = 1400            // bytes
	transmits   = 4               // factor of the number of sends of news
)

// Options are the parameters of New.
type Options struct {
	Addrs []netip.Addr // of the members
	Keys  []gossip.Key
	Join  []netip.Addr // others in the Swarm
}

// Crowd is other nodes. It is safe for concurrent use.
type Crowd struct {
	members []*member
	names   map[string]bool
	clock   atomic.Uint64 // Lamport's, of all
	running sync.WaitGroup
	ctx     context.Context //nolint:containedctx // until Close
	cancel  context.CancelFunc

	mu      sync.Mutex // guards network, payload, syncs, others
	others  []string   // that have been met
	network string     // that they are on
	payload []byte     // all that they have entered there
	syncs   []Sync
}

// Sync is that another member has asked one of these for all of the network.
type Sync struct {
	At    time.Time
	Bytes int // that it told itself
}

// Announcement is a record of one of these.
type Announcement struct {
	Member   int
	Endpoint string
	Record   gossip.Record
}

// New starts the members, which know each other and the Swarm when it returns.
func New(o Options) (*Crowd, error) {
	c := &Crowd{names: map[string]bool{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var keys [][]byte
	for _, k := range o.Keys {
		keys = append(keys, k[:])
	}
	for n, addr := range o.Addrs {
		m := &member{
			c: c, name: fmt.Sprintf("crowd%d", n), addr: addr, on: map[string]event{}, heard: map[string]event{},
			networks: &memberlist.TransmitLimitedQueue{RetransmitMult: transmits, NumNodes: func() int { return len(o.Addrs) }},
			tables:   &memberlist.TransmitLimitedQueue{RetransmitMult: transmits, NumNodes: func() int { return len(o.Addrs) }},
		}
		if err := m.start(keys); err != nil {
			c.Close()
			return nil, err
		}
		c.members, c.names[m.name] = append(c.members, m), true
	}
	if err := c.Meet(o.Join...); err != nil {
		c.Close()
		return nil, err
	}
	c.running.Go(c.gossip)
	c.running.Go(func() { c.each(probeEvery, c.probe) })
	c.running.Go(func() { c.each(syncEvery, c.sync) })
	c.running.Go(func() { c.each(stateEvery, c.state) })
	return c, nil
}

// Meet has all members know others, which know them then.
func (c *Crowd) Meet(others ...netip.Addr) error {
	var list []string
	for _, at := range others {
		list = append(list, netip.AddrPortFrom(at, gossip.DefaultPort).String())
	}
	for _, m := range c.members {
		if n, err := m.list.Join(list); err != nil || n < len(list) {
			return fmt.Errorf("%s joins %v: %w", m.name, list, err)
		}
	}
	c.mu.Lock()
	c.others = append(c.others, list...)
	c.mu.Unlock()
	return nil
}

// met are the others.
func (c *Crowd) met() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.others
}

// Close ends the members without a word. It is idempotent.
func (c *Crowd) Close() {
	c.cancel()
	c.running.Wait()
	for _, m := range c.members {
		_ = m.list.Shutdown()
	}
	c.members = nil
}

// Enter puts all members on a network, with these records, and announces that to all others in the Swarm.
func (c *Crowd) Enter(network string, records []Announcement) error {
	var events, all [][]byte
	for _, m := range c.members {
		e := event{kind: eventJoin, time: c.clock.Add(1), node: m.name, network: network}
		c.mu.Lock()
		m.own = e
		c.mu.Unlock()
		events = append(events, e.encode())
	}
	for _, r := range records {
		table, value, err := gossip.Encode(r.Record)
		if err != nil {
			return err
		}
		all = append(all, event{kind: eventJoin, time: c.clock.Add(1), node: c.members[r.Member].name, network: network, table: table, key: r.Endpoint, value: value}.encode())
	}
	c.mu.Lock()
	// A member of networkdb's newest version sends the members of the network, too.
	c.network, c.payload = network, compound(append(append([][]byte(nil), events...), all...))
	c.mu.Unlock()
	var errs []error
	for _, n := range c.members[0].list.Members() {
		if !c.names[n.Name] {
			errs = append(errs, c.members[0].list.SendReliable(n, compound(events)))
		}
	}
	return errors.Join(errs...)
}

// Heard returns how many members know where somebody else's endpoint is.
func (c *Crowd) Heard(endpoint string) (n int) {
	for _, m := range c.members {
		if _, ok := m.record(peerTable, endpoint); ok {
			n++
		}
	}
	return n
}

// Syncs are those so far.
func (c *Crowd) Syncs() []Sync {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Sync(nil), c.syncs...)
}

// gossip makes members relay news.
func (c *Crowd) gossip() {
	const parts = 10 // of the members, one after the other
	tick := time.NewTicker(gossipEvery / parts)
	defer tick.Stop()
	for n := 0; ; n = (n + 1) % parts {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		for i := n; i < len(c.members); i += parts {
			c.members[i].relay()
		}
	}
}

// each has a random member do something over and over, until Close.
func (c *Crowd) each(d time.Duration, do func(*member)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
			do(c.members[rand.IntN(len(c.members))]) //nolint:gosec // which one does not matter
		}
	}
}

// probe asks each other node whether it lives.
func (c *Crowd) probe(m *member) {
	for _, n := range m.list.Members() {
		if !c.names[n.Name] {
			_, _ = m.list.Ping(n.Name, &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
		}
	}
}

// sync asks each other node on the network for all of it.
func (c *Crowd) sync(m *member) {
	for _, n := range m.others() {
		m.send(n, true)
	}
}

// state exchanges the members of the Swarm with each other node.
func (c *Crowd) state(m *member) { _, _ = m.list.Join(c.met()) }

// member is one of them.
type member struct {
	c    *Crowd
	name string
	addr netip.Addr
	list *memberlist.Memberlist
	own  event // that it is on the network; guarded by Crowd.mu

	networks, tables *memberlist.TransmitLimitedQueue

	mu    sync.Mutex       // guards on, heard
	on    map[string]event // the others' networks
	heard map[string]event // their entries
}

var _ memberlist.Delegate = (*member)(nil)

func (m *member) start(keys [][]byte) (err error) {
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.BindAddr, conf.AdvertiseAddr = m.name, m.addr.String(), m.addr.String()
	conf.BindPort, conf.AdvertisePort = gossip.DefaultPort, gossip.DefaultPort
	conf.UDPBufferSize, conf.ProtocolVersion = packet, memberlist.ProtocolVersion2Compatible
	conf.Delegate, conf.LogOutput = m, io.Discard
	conf.ProbeInterval, conf.GossipInterval, conf.PushPullInterval = 0, 0, 0 // each does these, for all
	if conf.Keyring, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
		return err
	}
	m.list, err = memberlist.Create(conf)
	return err
}

// queued is news that is sent some times.
type queued struct {
	key  string
	time uint64
	msg  []byte
}

func (q *queued) Invalidates(other memberlist.Broadcast) bool {
	o, ok := other.(*queued)
	return ok && o.key == q.key && q.time >= o.time
}
func (q *queued) Message() []byte { return q.msg }
func (q *queued) Finished()       {}

// NodeMeta implements memberlist.Delegate: of networkdb's newest version.
func (m *member) NodeMeta(int) []byte { return []byte{1} }

// GetBroadcasts implements memberlist.Delegate: relay sends news.
func (m *member) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (m *member) LocalState(bool) []byte {
	m.c.mu.Lock()
	var list []event
	for _, o := range m.c.members {
		if o.own.network != "" {
			list = append(list, o.own)
		}
	}
	m.c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.on {
		list = append(list, e)
	}
	return encodePushPull(m.c.clock.Load(), m.name, list)
}

// MergeRemoteState implements memberlist.Delegate.
func (m *member) MergeRemoteState(buf []byte, _ bool) {
	if typ, body, err := open(buf); err == nil && typ == typePushPull {
		list, _ := decodePushPull(body)
		for _, e := range list {
			m.attach(e)
		}
	}
}

// NotifyMsg implements memberlist.Delegate.
func (m *member) NotifyMsg(buf []byte) { m.take(append([]byte(nil), buf...)) }

func (m *member) take(buf []byte) {
	typ, body, err := open(buf)
	if err != nil {
		return
	}
	switch typ {
	case typeCompound:
		list, _ := parts(body)
		for _, p := range list {
			m.take(p)
		}
	case typeNetwork:
		if e, err := decodeEvent(body); err == nil && m.attach(e) {
			m.networks.QueueBroadcast(&queued{e.node + "/" + e.network, e.time, buf})
		}
	case typeTable:
		if e, err := decodeEvent(body); err == nil && m.enter(e) {
			m.tables.QueueBroadcast(&queued{e.table + "/" + e.key, e.time, buf})
		}
	case typeBulkSync:
		if s, err := decodeBulkSync(body); err == nil {
			m.answer(s)
		}
	}
}

// witness advances the clock beyond a time.
func (m *member) witness(time uint64) {
	for now := m.c.clock.Load(); now < time && !m.c.clock.CompareAndSwap(now, time+1); now = m.c.clock.Load() {
		continue
	}
}

// attach records a member of a network, and reports whether that is new.
func (m *member) attach(e event) bool {
	m.witness(e.time)
	if m.c.names[e.node] {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := e.node + "/" + e.network
	old, there := m.on[key]
	if there && old.time >= e.time || !there && e.kind == eventLeave {
		return false
	}
	m.on[key] = e
	return true
}

// enter records another's entry in a table, and reports whether that is new. It ignores entries of nodes outside of the
// network.
func (m *member) enter(e event) bool {
	m.witness(e.time)
	if m.c.names[e.node] {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if on, there := m.on[e.node+"/"+e.network]; !there || on.kind == eventLeave {
		return false
	}
	key := e.table + "/" + e.key
	if old, there := m.heard[key]; there && old.time >= e.time {
		return false
	}
	m.heard[key] = e
	return true
}

// record returns another's entry.
func (m *member) record(table, endpoint string) (gossip.Record, bool) {
	m.mu.Lock()
	e, there := m.heard[table+"/"+endpoint]
	m.mu.Unlock()
	if !there || e.kind == eventDelete {
		return nil, false
	}
	r, err := gossip.Decode(e.table, e.value)
	return r, err == nil
}

// others are the network's members outside of the crowd.
func (m *member) others() (list []*memberlist.Node) {
	m.c.mu.Lock()
	network := m.c.network
	m.c.mu.Unlock()
	for _, n := range m.list.Members() {
		m.mu.Lock()
		e, there := m.on[n.Name+"/"+network]
		m.mu.Unlock()
		if there && e.kind != eventLeave {
			list = append(list, n)
		}
	}
	return list
}

// relay sends news to some others.
func (m *member) relay() {
	msgs := append(m.networks.GetBroadcasts(4, packet/2), m.tables.GetBroadcasts(4, packet/2)...)
	if len(msgs) == 0 {
		return
	}
	all := m.list.Members()
	for range fanOut {
		if n := rand.IntN(len(m.c.members) + len(m.c.met())); n < len(m.c.members) { //nolint:gosec // which one does not matter
			o := m.c.members[n]
			_ = m.list.SendBestEffort(o.list.LocalNode(), compound(msgs))
		} else if o := all[rand.IntN(len(all))]; !m.c.names[o.Name] { //nolint:gosec // the same
			_ = m.list.SendBestEffort(o, compound(msgs))
		}
	}
}

// answer records another's state of the network, and sends its own if requested.
func (m *member) answer(s bulkSync) {
	m.c.clock.Add(1)
	m.witness(s.time)
	m.take(s.payload)
	if !s.unsolicited {
		return
	}
	m.c.mu.Lock()
	m.c.syncs = append(m.c.syncs, Sync{time.Now(), len(s.payload)})
	m.c.mu.Unlock()
	for _, n := range m.list.Members() {
		if n.Name == s.node {
			m.send(n, false)
		}
	}
}

// send tells another one all of the network.
func (m *member) send(to *memberlist.Node, unsolicited bool) {
	m.c.mu.Lock()
	s := bulkSync{m.c.clock.Add(1), unsolicited, m.name, []string{m.c.network}, m.c.payload}
	m.c.mu.Unlock()
	_ = m.list.SendReliable(to, s.encode()) // one that is dead will ask itself
}
