package gossip

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	gossippb "github.com/longshore/longshore/api/swarm/gossip"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestTheWireIsDockers: we have the table of the contract, and nothing else.
func TestTheWireIsDockers(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 20, gossippb.File_swarm_gossip_gossip_proto)
}

// fromDockerd are records as dockerd 20.10 has them: of a task with a published port on the
// ingress network, and of the node's own endpoint there.
var fromDockerd = map[string]struct {
	table string
	value string
	want  Record
}{
	"task": {
		endpointTable, "\n\x0bweb.1.abcde\x12\x03web\x1a\x05svcid\"\x0910.0.0.11*\x0810.0.0.92\x05\x18P \x90?B\x0c0123456789ab",
		Endpoint{
			Name: "web.1.abcde", Service: "web", ServiceID: "svcid", VIP: netip.MustParseAddr("10.0.0.11"), Addr: netip.MustParseAddr("10.0.0.9"),
			Ports: []Port{{Proto: "tcp", Target: 80, Published: 8080}}, TaskAliases: []string{"0123456789ab"},
		},
	},
	"container": {endpointTable, "\n\x01c\"\x05<nil>*\x0810.0.1.9H\x01", Endpoint{Name: "c", Addr: netip.MustParseAddr("10.0.1.9"), Disabled: true}},
	"peer":      {peerTable, "\n\x0b10.0.0.9/24\x12\x1102:42:0A:00:00:09\x1a\x0a192.0.2.10", Peer{Addr: netip.MustParsePrefix("10.0.0.9/24"), MAC: "02:42:0a:00:00:09", Tunnel: netip.MustParseAddr("192.0.2.10")}},
}

func addrs() []cmp.Option {
	return []cmp.Option{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
}

func TestDecode(t *testing.T) {
	for name, tc := range fromDockerd {
		got, err := Decode(tc.table, []byte(tc.value))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(tc.want, got, addrs()...); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestWhatIsNoRecord: every field that another node can get wrong.
func TestWhatIsNoRecord(t *testing.T) {
	peer := func(change func(*gossippb.PeerRecord)) (string, []byte) {
		m := &gossippb.PeerRecord{EndpointIp: "10.0.1.9/24", EndpointMac: "02:42:0a:00:01:09", TunnelEndpointIp: "192.0.2.1"}
		change(m)
		b, _ := proto.Marshal(m)
		return peerTable, b
	}
	endpoint := func(change func(*gossippb.EndpointRecord)) (string, []byte) {
		m := &gossippb.EndpointRecord{Name: "web.1.abc", ServiceName: "web", ServiceId: "id", VirtualIp: "10.0.1.11", EndpointIp: "10.0.1.9", IngressPorts: []*gossippb.PortConfig{{TargetPort: 80, PublishedPort: 8080}}}
		change(m)
		b, _ := proto.Marshal(m)
		return endpointTable, b
	}
	if _, err := Decode(peer(func(*gossippb.PeerRecord) {})); err != nil {
		t.Error(err)
	}
	for _, vip := range []string{"10.0.1.11", "fd00::11", "", "<nil>"} {
		if _, err := Decode(endpoint(func(m *gossippb.EndpointRecord) { m.VirtualIp = vip })); err != nil {
			t.Errorf("virtual address %q: %v", vip, err)
		}
	}
	bad := map[string]func() (string, []byte){}
	for _, s := range []string{"", "10.0.1.9", "10.0.1.9/33", "0.0.0.0/0", "224.0.0.1/24", "127.0.0.1/8", "255.255.255.255/32", "::ffff:10.0.1.9/120", "x", strings.Repeat("1", 20000)} {
		bad["peer address "+short(s)] = func() (string, []byte) { return peer(func(m *gossippb.PeerRecord) { m.EndpointIp = s }) }
	}
	for _, s := range []string{"", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:42:0a:00:01", "02:42:0a:00:01:09:00:00", "x"} {
		bad["mac "+s] = func() (string, []byte) { return peer(func(m *gossippb.PeerRecord) { m.EndpointMac = s }) }
	}
	for _, s := range []string{"", "0.0.0.0", "127.0.0.1", "239.1.1.1", "192.0.2.1/24", "fe80::1%eth0", "host"} {
		bad["tunnel "+s] = func() (string, []byte) {
			return peer(func(m *gossippb.PeerRecord) { m.TunnelEndpointIp = s })
		}
	}
	for _, s := range []string{"", "10.0.1.9/24", "::", "224.0.0.1"} {
		bad["endpoint address "+s] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.EndpointIp = s }) }
	}
	for _, s := range []string{"nil", "10.0.1.9", "10.0.1.0/24", "127.0.0.1"} {
		bad["virtual address "+s] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.VirtualIp = s }) }
	}
	for _, s := range []string{"a\x00b", "a b", "a\n", strings.Repeat("n", 300)} {
		bad["name "+short(s)] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.Name = s }) }
		bad["service "+short(s)] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.ServiceName = s }) }
		bad["alias "+short(s)] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.Aliases = []string{s} }) }
		bad["task alias "+short(s)] = func() (string, []byte) {
			return endpoint(func(m *gossippb.EndpointRecord) { m.TaskAliases = []string{s} })
		}
	}
	bad["no name"] = func() (string, []byte) { return endpoint(func(m *gossippb.EndpointRecord) { m.Name = "" }) }
	bad["aliases"] = func() (string, []byte) {
		return endpoint(func(m *gossippb.EndpointRecord) { m.Aliases = slices.Repeat([]string{"a"}, 5000) })
	}
	for name, p := range map[string]*gossippb.PortConfig{"port 0": {TargetPort: 80}, "target 0": {PublishedPort: 80}, "port 65536": {TargetPort: 1, PublishedPort: 65536}, "target 70000": {TargetPort: 70000, PublishedPort: 1}, "protocol 3": {Protocol: 3, TargetPort: 1, PublishedPort: 1}} {
		bad[name] = func() (string, []byte) {
			return endpoint(func(m *gossippb.EndpointRecord) { m.IngressPorts = append(m.IngressPorts, p) })
		}
	}
	bad["not utf-8"] = func() (string, []byte) { return endpointTable, []byte("\n\x02\xff\xfe") }
	bad["no protobuf"] = func() (string, []byte) { return peerTable, []byte("rubbish") }
	for name, record := range bad {
		if r, err := Decode(record()); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", name, r, err)
		} else if len(err.Error()) > 300 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

// FuzzRecord: a record taken from others can be announced, and stays the same.
func FuzzRecord(f *testing.F) {
	for _, tc := range fromDockerd {
		f.Add(tc.table == peerTable, []byte(tc.value))
	}
	f.Fuzz(func(t *testing.T, peer bool, value []byte) {
		table := endpointTable
		if peer {
			table = peerTable
		}
		r, err := Decode(table, value)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v has no class", err)
			}
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatalf("%#v: %v", r, err)
		}
		if back, err := Decode(table, again); err != nil || !Same(r, back) {
			t.Errorf("%#v became %#v, %v", r, back, err)
		}
	})
}

func TestKeyring(t *testing.T) {
	key := func(b byte) []byte { return append([]byte{b}, make([]byte, 15)...) }
	got, err := Keyring([]TimedKey{{key(3), 30}, {key(1), 10}, {key(2), 20}})
	if want := []Key{Key(key(2)), Key(key(1)), Key(key(3))}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Keyring([]TimedKey{{key(1), 10}}); err != nil || len(got) != 1 {
		t.Errorf("one key: %v, %v", got, err)
	}
	if got, err := Keyring([]TimedKey{{key(1), 10}, {key(1), 11}, {key(2), 12}}); err != nil || !slices.Equal(got, []Key{Key(key(2)), Key(key(1))}) {
		t.Errorf("one key twice: %v, %v", got, err)
	}
	for name, list := range map[string][]TimedKey{"none": nil, "short": {{key(1)[:8], 1}}, "empty": {{nil, 1}}, "long": {{make([]byte, 32), 1}}} {
		if _, err := Keyring(list); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "[") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNames: they are of Docker's form, the same in every process, and no two are equal.
func TestNames(t *testing.T) {
	if got := NodeName("node"); len(got) != 12 || got != NodeName("node") || got == NodeName("nodf") {
		t.Errorf("%s", got)
	}
	if got := EndpointID("task", "net"); len(got) != 64 || got == EndpointID("taskn", "et") || got == EndpointID("task", "other") {
		t.Errorf("%s", got)
	}
}
