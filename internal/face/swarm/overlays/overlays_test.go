package overlays_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/state"
)

// The nodes of the tests: ours, and another one that is a member of the gossip.
var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

// factory is the gossip of a test.
type factory struct {
	net *gossiptest.Net

	mu   sync.Mutex // guards busy
	busy error
}

func (d *factory) Able() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.busy
}

func (d *factory) set(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy = err
}

func (d *factory) New(name string, advertise netip.Addr, _ []gossip.Key) (gossip.Member, error) {
	if err := d.Able(); err != nil {
		return nil, err
	}
	return d.net.Member(name, advertise), nil
}

// rig is a node, and another one.
type rig struct {
	*overlays.Networks
	t       *testing.T
	fake    *enginetest.Overlays
	factory *factory
	kv      core.KV
	mem     *keepertest.Holder
	node    string
	data    netip.Addr // Options.DataPath
	other   gossip.Member
	stop    func()
	point   func(stage string) error
	log     *slog.Logger

	mu    sync.Mutex // guards notes, went, changed
	notes []string
	went  int
	diffs int
}

// newRig is called inside of a synctest bubble.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, fake: enginetest.Fakes(t).Overlays, factory: &factory{net: gossiptest.NewNet()}, kv: state.NewMemory(64).Scope(core.OwnerSwarm, true), mem: keepertest.NewHolder(t), node: "node"}
	r.other = r.factory.net.Member("other", there)
	r.log = slog.New(slog.DiscardHandler)
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	r.Networks = overlays.New(overlays.Options{
		Overlays: r.fake, Gossip: r.factory, KV: r.kv, Memory: r.mem, Node: r.node, Advertise: here, DataPath: r.data, Mesh: true, Logger: r.log, FailPoint: r.point,
		Note: func(note string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.notes = append(r.notes, note)
		},
		Changed: func() { r.mu.Lock(); defer r.mu.Unlock(); r.diffs++ },
		Resume:  func() { r.mu.Lock(); defer r.mu.Unlock(); r.went++ },
	})
	ctx, cancel := context.WithCancel(context.Background())
	r.Start(ctx)
	r.stop = func() {
		cancel()
		r.Wait()
	}
}

// told applies a manager's first message.
func (r *rig) told(change ...func(*swarmv1.SessionMessage)) {
	m := &swarmv1.SessionMessage{Node: &swarmv1.Node{}, Managers: []*swarmv1.WeightedPeer{{Peer: &swarmv1.Peer{Addr: there.String() + ":2377"}}}}
	for i, subsystem := range []string{"networking:gossip", "networking:ipsec"} {
		for n := range 3 {
			key := make([]byte, 16)
			key[0], key[1] = byte(i), byte(n)
			m.NetworkBootstrapKeys = append(m.NetworkBootstrapKeys, &swarmv1.EncryptionKey{Subsystem: subsystem, Key: key, LamportTime: uint64(10*i + n + 1)})
		}
	}
	for _, fn := range change {
		fn(m)
	}
	r.Configure(m)
	r.settle()
}

// settle lets everything come about that is under way.
func (r *rig) settle() {
	<-time.After(3 * time.Second)
	synctest.Wait()
}

func (r *rig) said(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, note := range r.notes {
		if strings.Contains(note, text) {
			n++
		}
	}
	return n
}

// network is one with the addresses 10.0.N.0/24.
func network(id string, n int, host int) translate.Network {
	p := netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", n))
	return translate.Network{
		Overlay: core.Overlay{Name: id, MTU: 1450, Subnets: []core.OverlaySubnet{{Range: p, Gateway: p.Addr().Next(), VNI: uint32(4096 + n)}}},
		Title:   id, Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n), byte(host)}), 24)},
	}
}

func addr(n, host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n), byte(host)}) }

// web is a task of the service web on a network.
func web(id string, on ...translate.Network) overlays.Task {
	t := overlays.Task{ID: id, Name: "web.1." + id, Service: "web", ServiceID: "svc"}
	for _, n := range on {
		vip := n.Addrs[0].Addr().As4()
		vip[3] = 100
		o := overlays.On{Network: n, VIP: netip.AddrFrom4(vip)}
		if n.Ingress {
			o.Ports = []gossip.Port{{Proto: "tcp", Target: 80, Published: 8080}}
		}
		t.On = append(t.On, o)
	}
	return t
}

func (r *rig) hold(t overlays.Task) {
	r.t.Helper()
	if err := r.Hold(r.t.Context(), t); err != nil {
		r.t.Fatal(err)
	}
	r.Attached(t.ID)
}

// hears returns the other node's records of a network.
func (r *rig) hears(id string) (peers []gossip.Peer, names []gossip.Endpoint) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := r.other.Begin(ctx, id); err != nil {
		r.t.Fatal(err)
	}
	var mu sync.Mutex
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c := range r.other.Watch(ctx, id) {
			mu.Lock()
			switch rec := c.Record.(type) {
			case gossip.Peer:
				peers = append(peers, rec)
			case gossip.Endpoint:
				names = append(names, rec)
			}
			mu.Unlock()
		}
	}()
	synctest.Wait()
	cancel()
	synctest.Wait()
	return peers, names
}

// announce has the other node tell of a task of its own.
func (r *rig) announce(id, endpoint string, records ...gossip.Record) {
	r.t.Helper()
	if err := r.other.Begin(context.Background(), id); err != nil {
		r.t.Fatal(err)
	}
	for _, rec := range records {
		if err := r.other.Announce(gossip.ID{Network: id, Endpoint: endpoint}, rec); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) overlay(id string) enginetest.Overlay {
	r.t.Helper()
	o, ok := r.fake.Get(id)
	if !ok {
		r.t.Fatalf("network %s is not open", id)
	}
	return o
}

func bubble(t *testing.T, fn func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		fn(t, r)
		r.stop()
	})
}

// TestATaskOnANetwork: others hear its place when it has its interfaces, and its names when it serves;
// that it is about to end before it ends; and nothing after. Its names and its service lead to it and to
// the others', and the network goes with its last task.
func TestATaskOnANetwork(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.hold(web("a", network("back", 1, 9)))
		r.settle()
		if peers, _ := r.hears("back"); len(peers) != 0 {
			t.Errorf("without keys others hear of %v", peers)
		}
		r.told()
		peers, names := r.hears("back")
		if want := (gossip.Peer{Addr: netip.PrefixFrom(addr(1, 9), 24), MAC: "02:42:0a:00:01:09", Tunnel: here}); len(peers) != 1 || peers[0] != want || len(names) != 0 {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		r.Running("a", "0123456789ab", "host")
		_, names = r.hears("back")
		if len(names) != 1 || names[0].Name != "web.1.a" || names[0].VIP != addr(1, 100) || !slices.Equal(names[0].TaskAliases, []string{"0123456789ab", "host"}) || names[0].Disabled {
			t.Errorf("others hear of %v", names)
		}
		r.announce("back", "theirs", gossip.Peer{Addr: netip.PrefixFrom(addr(1, 10), 24), MAC: "02:42:0a:00:01:0a", Tunnel: there},
			gossip.Endpoint{Name: "web.2.x", Service: "web", ServiceID: "svc", VIP: addr(1, 100), Addr: addr(1, 10)})
		r.settle()
		o := r.overlay("back")
		if p := o.Peers["theirs"]; len(o.Peers) != 1 || p.Node != there || p.Addr != addr(1, 10) {
			t.Errorf("peers %v", o.Peers)
		}
		if !slices.Equal(o.Names["tasks.web"], []netip.Addr{addr(1, 9), addr(1, 10)}) || !slices.Equal(o.Names["web"], []netip.Addr{addr(1, 100)}) || !slices.Equal(o.Names["host"], []netip.Addr{addr(1, 9)}) || !slices.Equal(o.Names["host.back"], o.Names["host"]) || o.Owners[addr(1, 100)] != "web.back" || o.Owners[addr(1, 10)] != "web.2.x.back" {
			t.Errorf("names %v, owners %v", o.Names, o.Owners)
		}
		if len(o.Services) != 1 || !slices.Equal(o.Services[0].Backends, []core.OverlayBackend{{Addr: addr(1, 9)}, {Addr: addr(1, 10)}}) {
			t.Errorf("services %v", o.Services)
		}
		r.Ending("a")
		if _, names = r.hears("back"); len(names) != 1 || !names[0].Disabled {
			t.Errorf("others hear of %v", names)
		}
		r.settle()
		if o := r.overlay("back"); !slices.Equal(o.Services[0].Backends, []core.OverlayBackend{{Addr: addr(1, 9), Draining: true}, {Addr: addr(1, 10)}}) {
			t.Errorf("services %v", o.Services)
		}
		r.Release("a")
		r.settle()
		if peers, names = r.hears("back"); len(peers)+len(names) != 0 {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		if _, open := r.fake.Get("back"); open {
			t.Error("the network is still open")
		}
		<-time.After(time.Minute) // it is kept until all have heard
		for key := range r.kv.All("announced/") {
			t.Errorf("kept: %s", key)
		}
	})
}

// TestANodeThatCannot takes no task, says why, and is able again without anyone's help.
func TestANodeThatCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, fake: enginetest.Fakes(t).Overlays, factory: &factory{net: gossiptest.NewNet(), busy: errors.New("port 7946 is a dockerd's")}, kv: state.NewMemory(64).Scope(core.OwnerSwarm, true), mem: keepertest.NewHolder(t), node: "node", log: slog.New(slog.DiscardHandler)}
		r.other = r.factory.net.Member("other", there)
		r.start()
		defer func() { r.stop() }()
		if err := r.Able(); err == nil || !strings.Contains(err.Error(), "7946") || r.Status().Unable == "" {
			t.Errorf("able: %v", err)
		}
		err := r.Hold(t.Context(), web("a", network("back", 1, 9)))
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "7946") {
			t.Errorf("%v", err)
		}
		r.told()
		r.factory.set(nil)
		<-time.After(time.Minute)
		synctest.Wait()
		if err := r.Able(); err != nil || r.diffs < 2 {
			t.Errorf("%v, %d changes", err, r.diffs)
		}
		r.hold(web("a", network("back", 1, 9)))
		r.settle()
		if peers, _ := r.hears("back"); len(peers) != 1 {
			t.Errorf("others hear of %v", peers)
		}
	})
}

// TestTheManagersKeys: without, with one, with one of the wrong length; the second oldest encrypts.
func TestTheManagersKeys(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := network("secret", 2, 9)
		secret.Overlay.Encrypted = true
		if err := r.Hold(t.Context(), web("b", secret)); !errors.Is(err, overlays.ErrWaits) {
			t.Errorf("%v", err)
		}
		r.told(func(m *swarmv1.SessionMessage) { m.NetworkBootstrapKeys[1].Key = []byte("short") })
		if err := r.Able(); err != nil && !strings.Contains(err.Error(), "5 bytes") || r.said("5 bytes") != 1 {
			t.Errorf("%v, %v", err, r.notes)
		}
		r.told(func(m *swarmv1.SessionMessage) { m.NetworkBootstrapKeys[1].Key = []byte("short") })
		if r.said("5 bytes") != 1 {
			t.Errorf("it is told again and again: %v", r.notes)
		}
		if err := r.Hold(t.Context(), web("a", network("back", 1, 9))); !errdefs.IsNotImplemented(err) {
			t.Errorf("%v", err)
		}
		went := r.went
		r.told()
		if err := r.Able(); err != nil || r.went == went {
			t.Errorf("%v, %d", err, r.went)
		}
		if keys := r.fake.Keys(); len(keys) != 3 || keys[0].ID != 12 || keys[0].Key[1] != 1 || keys[1].ID != 11 {
			t.Errorf("keys %v", keys)
		}
		r.hold(web("b", secret))
		r.told(func(m *swarmv1.SessionMessage) {
			for _, k := range m.NetworkBootstrapKeys {
				k.LamportTime += 100
			}
		})
		if keys := r.fake.Keys(); len(keys) != 3 || keys[0].ID != 112 {
			t.Errorf("keys %v", keys)
		}
		r.fake.Unable(nil, errors.New("no ESP"))
		other := network("other", 3, 9)
		other.Overlay.Encrypted = true
		if err := r.Hold(t.Context(), web("c", other)); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "no ESP") {
			t.Errorf("%v", err)
		}
	})
}

// TestWhereOthersSend: packets come to the data path's own address, if it has one, and to the port that the managers say,
// which the next agent knows before they have said it again.
func TestWhereOthersSend(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told(func(m *swarmv1.SessionMessage) { m.Node.VXLANUDPPort = 7777 })
		r.hold(web("a", network("back", 1, 9)))
		r.settle()
		if o := r.overlay("back"); o.Local != here || o.Port != 7777 {
			t.Errorf("%+v", o.Overlay)
		}
		r.Release("a")
		r.settle()
		r.stop()
		r.data = netip.MustParseAddr("198.51.100.1")
		r.start()
		r.hold(web("b", network("front", 2, 9)))
		if o := r.overlay("front"); o.Local != r.data || o.Port != 7777 {
			t.Errorf("the next agent: %+v", o.Overlay)
		}
		r.Resumed()
		r.told(func(m *swarmv1.SessionMessage) { m.Node.VXLANUDPPort = 7777 })
		if peers, _ := r.hears("front"); len(peers) != 1 || peers[0].Tunnel != r.data {
			t.Errorf("others hear of %v", peers)
		}
	})
}

func ingress(host int) translate.Network {
	n := network("ingress", 0, host)
	n.Ingress = true
	return n
}

// ofNode has a manager give the node its address for published ports.
func ofNode(m *swarmv1.SessionMessage) {
	m.Node.Attachments = append(m.Node.Attachments, &swarmv1.NetworkAttachment{
		Network: &swarmv1.Network{
			Id: "ingress", Spec: &swarmv1.NetworkSpec{Ingress: true}, Ipam: &swarmv1.IPAMOptions{Configs: []*swarmv1.IPAMConfig{{Subnet: "10.0.0.0/24", Gateway: "10.0.0.1"}}},
			DriverState: &swarmv1.Driver{Options: map[string]string{"com.docker.network.driver.overlay.vxlanid_list": "4096"}},
		},
		Addresses: []string{"10.0.0.2/24"},
	})
}

// TestPublishedPorts: the node leads each port of the swarm to the tasks that are behind it, and tells
// others of its own place; a port in use here is reported once, and led when it is free.
func TestPublishedPorts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.fake.Take("tcp", 9090, errors.New("nginx has it"))
		r.told(ofNode)
		if in, _ := r.fake.Published(); in.Network != "ingress" || in.Addrs[0].Addr() != addr(0, 2) || in.MAC != "02:42:0a:00:00:02" {
			t.Errorf("ingress %+v", in)
		}
		if peers, names := r.hears("ingress"); len(peers) != 1 || peers[0].Addr.Addr() != addr(0, 2) || len(names) != 0 {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		r.announce("ingress", "theirs", gossip.Endpoint{
			Name: "db.1.x", Service: "db", ServiceID: "db", Addr: addr(0, 7), VIP: addr(0, 50),
			Ports: []gossip.Port{{Proto: "tcp", Target: 1, Published: 9090}, {Proto: "udp", Target: 2, Published: 9091}},
		})
		r.hold(web("a", ingress(9)))
		r.Running("a", "0123456789ab")
		r.settle()
		if _, ports := r.fake.Published(); len(ports) != 2 || ports[0].Port != 8080 || ports[0].Backends[0].Addr != addr(0, 9) || ports[1].Port != 9091 || ports[1].Proto != "udp" {
			t.Errorf("ports %v", ports)
		}
		<-time.After(time.Minute)
		if st := r.Status(); r.said("nginx has it") != 1 || len(st.Taken) != 1 {
			t.Errorf("told %v, status %+v", r.notes, st)
		}
		if o := r.overlay("ingress"); len(o.Names) != 0 || len(o.Services) != 0 {
			t.Errorf("the network of published ports has names: %+v", o)
		}
		r.fake.Take("tcp", 9090, nil)
		<-time.After(time.Minute)
		if _, ports := r.fake.Published(); len(ports) != 3 || len(r.Status().Taken) != 0 {
			t.Errorf("ports %v", ports)
		}
		r.Release("a")
		r.settle()
		if in, ports := r.fake.Published(); in.Network == "" || len(ports) != 2 {
			t.Errorf("without a task of this node: %v, %v", in, ports)
		}
		r.told()
		r.settle()
		if in, _ := r.fake.Published(); in.Network != "" {
			t.Errorf("ingress %v", in)
		}
		if _, open := r.fake.Get("ingress"); open {
			t.Error("its network is open")
		}
	})
}

// TestCutOff: the node logs once that no other node answers any more, and once that one does.
func TestCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		r.Running("a")
		r.other.Leave()
		<-time.After(time.Minute)
		if st := r.Status(); r.said("no other node") != 1 || !strings.Contains(st.Gossip, "no other node answers since") || len(st.Networks) != 1 || st.Networks[0].Tasks != 1 {
			t.Errorf("told %v, status %+v", r.notes, st)
		}
		if _, open := r.fake.Get("back"); !open {
			t.Error("the network is closed")
		}
		r.other = r.factory.net.Member("other", there)
		<-time.After(time.Minute)
		if st := r.Status(); r.said("answer again") != 1 || st.Gossip != "up" {
			t.Errorf("told %v, status %+v", r.notes, st)
		}
		if _, names := r.hears("back"); len(names) != 1 {
			t.Errorf("others hear of %v", names)
		}
	})
}

// TestRecordsThatCannotBe are left out, each with no effect on the others.
func TestRecordsThatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		r.hold(web("b", network("front", 2, 9)))
		r.Running("a")
		r.settle()
		before := r.overlay("back")
		peer := func(n, host int, tunnel netip.Addr) gossip.Peer {
			return gossip.Peer{Addr: netip.PrefixFrom(addr(n, host), 24), MAC: "02:42:00:00:00:01", Tunnel: tunnel}
		}
		named := func(n, host, vip int) gossip.Endpoint {
			return gossip.Endpoint{Name: "evil.1.x", Service: "web", ServiceID: "svc", Addr: addr(n, host), VIP: addr(n, vip), Aliases: []string{"web"}}
		}
		for i, rec := range []gossip.Record{
			peer(7, 9, there), peer(1, 1, there), peer(1, 0, there), peer(1, 9, there), peer(1, 33, here), peer(1, 100, there),
			named(7, 9, 100), named(1, 1, 100), named(1, 9, 100), named(1, 40, 9), named(1, 100, 50), named(1, 41, 1),
		} {
			r.announce("back", fmt.Sprint("evil", i), rec)
		}
		own := gossip.EndpointID("a", "back")
		r.announce("back", own+"x", peer(1, 9, there))
		r.announce("elsewhere", "x", peer(1, 77, there))
		r.settle()
		after := r.overlay("back")
		if len(after.Peers) != 0 || len(after.Names) != len(before.Names) || len(after.Services) != 1 || len(after.Services[0].Backends) != 1 {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if o := r.overlay("front"); len(o.Peers) != 0 || len(o.Names) != 0 {
			t.Errorf("another network is touched: %+v", o)
		}
		// A record in place of one that was good is nobody's.
		r.announce("back", "turns", peer(1, 50, there))
		r.settle()
		if o := r.overlay("back"); len(o.Peers) != 1 {
			t.Errorf("peers %v", o.Peers)
		}
		r.announce("back", "turns", peer(1, 1, there))
		r.settle()
		if o := r.overlay("back"); len(o.Peers) != 0 {
			t.Errorf("peers %v", o.Peers)
		}
	})
}

// TestABurst of records is a handful of calls.
func TestABurst(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		big := network("back", 1, 9)
		big.Overlay.Subnets[0].Range = netip.MustParsePrefix("10.0.0.0/16")
		big.Overlay.Subnets[0].Gateway = netip.MustParseAddr("10.0.0.1")
		r.hold(web("a", big))
		r.settle()
		before := r.fake.Calls("SetPeers") + r.fake.Calls("SetNames") + r.fake.Calls("SetServices")
		for i := range 2000 {
			at := addr(10+i/200, 10+i%200)
			r.announce("back", fmt.Sprint("e", i), gossip.Peer{Addr: netip.PrefixFrom(at, 16), MAC: "02:42:00:00:00:01", Tunnel: there},
				gossip.Endpoint{Name: fmt.Sprintf("s.%d.x", i), Service: "s", ServiceID: "s", VIP: addr(1, 100), Addr: at})
		}
		r.settle()
		o := r.overlay("back")
		if len(o.Peers) != 2000 || len(o.Names["tasks.s"]) != 2000 {
			t.Errorf("%d peers, %d names", len(o.Peers), len(o.Names["tasks.s"]))
		}
		if calls := r.fake.Calls("SetPeers") + r.fake.Calls("SetNames") + r.fake.Calls("SetServices") - before; calls > 30 {
			t.Errorf("%d calls", calls)
		}
	})
}
