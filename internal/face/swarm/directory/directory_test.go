package directory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func sameAddr() cmp.Option { return cmp.Comparer(func(a, b netip.Addr) bool { return a == b }) }

func empty() *Directory {
	return New(Network{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}, Gateways: []netip.Addr{ip("10.0.1.1"), ip("fd00:1::1")}})
}

// task is one of a service; number is its slot and the end of its address.
func task(service string, number int, vip string, change ...func(*gossip.Endpoint)) gossip.Endpoint {
	e := gossip.Endpoint{
		Name: fmt.Sprintf("%s.%d.t", service, number), Service: service, ServiceID: "id-" + service, Addr: ip(fmt.Sprintf("10.0.1.%d", number)), TaskAliases: []string{fmt.Sprintf("c%d", number)},
	}
	if vip != "" {
		e.VIP = ip(vip)
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func ending(e *gossip.Endpoint) { e.Disabled = true }

func port(published uint16) func(*gossip.Endpoint) {
	return func(e *gossip.Endpoint) {
		e.Ports = append(e.Ports, gossip.Port{Proto: "tcp", Target: 80, Published: published})
	}
}

func put(t *testing.T, d *Directory, list ...gossip.Endpoint) {
	t.Helper()
	for _, e := range list {
		if err := d.Put(e.Name, e); err != nil {
			t.Fatal(err)
		}
	}
}

// example is a service with an address of its own, one without, and a container of none.
func example() []gossip.Endpoint {
	return []gossip.Endpoint{
		task("Web", 2, "10.0.1.100", func(e *gossip.Endpoint) { e.Aliases = []string{"www"} }), task("Web", 3, "10.0.1.100", func(e *gossip.Endpoint) { e.Aliases = []string{"www"} }), task("Web", 4, "10.0.1.100", ending),
		task("db", 5, ""), task("db", 6, ""),
		{Name: "box", Addr: ip("fd00:1::7"), TaskAliases: []string{"0123"}},
	}
}

func TestNames(t *testing.T) {
	d := empty()
	put(t, d, example()...)
	want := map[string][]netip.Addr{
		"web": {ip("10.0.1.100")}, "www": {ip("10.0.1.100")}, "tasks.web": {ip("10.0.1.2"), ip("10.0.1.3")}, "tasks.www": {ip("10.0.1.2"), ip("10.0.1.3")},
		"web.2.t": {ip("10.0.1.2")}, "web.3.t": {ip("10.0.1.3")}, "c2": {ip("10.0.1.2")}, "c3": {ip("10.0.1.3")},
		"db": {ip("10.0.1.5"), ip("10.0.1.6")}, "tasks.db": {ip("10.0.1.5"), ip("10.0.1.6")}, "db.5.t": {ip("10.0.1.5")}, "db.6.t": {ip("10.0.1.6")}, "c5": {ip("10.0.1.5")}, "c6": {ip("10.0.1.6")},
		"box": {ip("fd00:1::7")}, "0123": {ip("fd00:1::7")},
	}
	if diff := cmp.Diff(want, d.Names(), sameAddr()); diff != "" {
		t.Error(diff)
	}
	for addr, name := range map[string]string{"10.0.1.2": "Web.2.t", "10.0.1.4": "Web.4.t", "10.0.1.100": "Web", "fd00:1::7": "box", "10.0.1.200": "", "10.0.1.1": ""} {
		if got := d.Reverse(ip(addr)); got != name {
			t.Errorf("%s is %q, want %q", addr, got, name)
		}
	}
	d.Drop("box")
	d.Drop("box")
	if got := d.Names()["box"]; got != nil {
		t.Errorf("box, which is gone: %v", got)
	}
}

// TestNamesOfServicesThatEnd: while the last tasks of a service end, its own address has its name and its
// aliases still, so that no client is refused the name; the tasks' own names are gone.
func TestNamesOfServicesThatEnd(t *testing.T) {
	d := empty()
	put(t, d, task("web", 2, "10.0.1.100", ending, func(e *gossip.Endpoint) { e.Aliases = []string{"www"} }), task("db", 5, "", ending, func(e *gossip.Endpoint) { e.Aliases = []string{"sql"} }))
	want := map[string][]netip.Addr{"web": {ip("10.0.1.100")}, "www": {ip("10.0.1.100")}}
	if diff := cmp.Diff(want, d.Names(), sameAddr()); diff != "" {
		t.Error(diff)
	}
	d.Drop("web.2.t")
	if got := d.Names(); len(got) != 0 {
		t.Errorf("when they are gone: %v", got)
	}
}

// TestNamesOfANetwork: each name resolves with the network's behind it, unless an endpoint is called
// so, and addresses resolve to that.
func TestNamesOfANetwork(t *testing.T) {
	plain := empty()
	put(t, plain, example()...)
	d := New(Network{Title: "Back", Ranges: plain.net.Ranges})
	put(t, d, example()...)
	put(t, d, gossip.Endpoint{Name: "other", Addr: ip("10.0.1.9"), TaskAliases: []string{"db.back"}})
	want := plain.Names()
	for name, addrs := range plain.Names() {
		want[name+".back"] = addrs
	}
	want["db.back"] = []netip.Addr{ip("10.0.1.9")}
	for _, name := range []string{"other", "other.back", "db.back.back"} {
		want[name] = want["db.back"]
	}
	if diff := cmp.Diff(want, d.Names(), sameAddr()); diff != "" {
		t.Error(diff)
	}
	owners := d.Owners()
	for addr, name := range map[string]string{"10.0.1.2": "Web.2.t.Back", "10.0.1.100": "Web.Back", "fd00:1::7": "box.Back", "10.0.1.200": ""} {
		if got := d.Reverse(ip(addr)); got != name || owners[ip(addr)] != name {
			t.Errorf("%s is %q and %q, want %q", addr, got, owners[ip(addr)], name)
		}
	}
}

func TestServices(t *testing.T) {
	d := empty()
	put(t, d, example()...)
	// Somebody takes the address of Web for a service of his own.
	put(t, d, task("zz", 66, "10.0.1.100"))
	want := map[netip.Addr][]Backend{ip("10.0.1.100"): {{ip("10.0.1.2"), false}, {ip("10.0.1.3"), false}, {ip("10.0.1.4"), true}}}
	if diff := cmp.Diff(want, d.Services(), sameAddr()); diff != "" {
		t.Error(diff)
	}
}

// TestPorts: during an update some tasks have other ports; a port of two services is one's.
func TestPorts(t *testing.T) {
	d := empty()
	put(t, d, task("web", 2, "", port(80), port(443)), task("web", 3, "", port(80), port(8443)), task("web", 4, "", port(80), ending), task("zz", 66, "", port(80), port(81)))
	// Two records of one address: a task moves.
	if err := d.Put("another key", task("web", 4, "", port(80))); err != nil {
		t.Fatal(err)
	}
	want := map[Port][]Backend{
		{"tcp", 80}: {{ip("10.0.1.2"), false}, {ip("10.0.1.3"), false}, {ip("10.0.1.4"), false}}, {"tcp", 443}: {{ip("10.0.1.2"), false}}, {"tcp", 8443}: {{ip("10.0.1.3"), false}}, {"tcp", 81}: {{ip("10.0.1.66"), false}},
	}
	if diff := cmp.Diff(want, d.Ports(), sameAddr()); diff != "" {
		t.Error(diff)
	}
}

// TestWhoCannotBeHere: such an endpoint has no name, and takes none from others.
func TestWhoCannotBeHere(t *testing.T) {
	d := empty()
	put(t, d, example()...)
	want := d.Names()
	for name, e := range map[string]gossip.Endpoint{
		"nothing": {}, "foreign": task("x", 9, "", func(e *gossip.Endpoint) { e.Addr = ip("10.0.2.9") }), "gateway": task("x", 1, ""), "range": task("x", 0, ""),
		"foreign service": task("x", 9, "10.0.2.100"), "gateway of a service": task("x", 9, "10.0.1.1"), "at a service": task("x", 100, ""), "service at a task": task("x", 9, "10.0.1.2"),
	} {
		if err := d.Put("new", e); !errdefs.IsInvalidArgument(err) || len(err.Error()) > 300 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, d.Names(), sameAddr()); diff != "" {
		t.Error(diff)
	}
	// The key's old endpoint is gone, too.
	if err := d.Put("box", gossip.Endpoint{Name: strings.Repeat("n", 300)}); err == nil || d.Names()["box"] != nil {
		t.Errorf("%v, box is %v", err, d.Names()["box"])
	}
}

// TestTheOrderDoesNotMatter: the same endpoints give the same answers.
func TestTheOrderDoesNotMatter(t *testing.T) {
	first := empty()
	list := append(example(), task("zz", 66, "10.0.1.101", port(80)), task("aa", 67, "10.0.1.102", port(80)), task("aa", 68, "10.0.1.102", port(81), ending))
	put(t, first, list...)
	for range 20 {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		d := empty()
		put(t, d, task("gone", 70, "10.0.1.110"))
		put(t, d, list...)
		d.Drop("gone.70.t")
		for what, diff := range map[string]string{
			"names": cmp.Diff(first.Names(), d.Names(), sameAddr()), "services": cmp.Diff(first.Services(), d.Services(), sameAddr()), "ports": cmp.Diff(first.Ports(), d.Ports(), sameAddr()),
		} {
			if diff != "" {
				t.Fatalf("%s: %s", what, diff)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(first.Names())); len(got) < 10 {
		t.Errorf("names: %v", got)
	}
}

// TestMany: a member's flood takes time that grows with its number only. Squared, a test of this size
// does not end.
func TestMany(t *testing.T) {
	const n = 1 << 16
	d := New(Network{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Gateways: []netip.Addr{ip("10.0.0.1")}})
	for i := range n {
		e := gossip.Endpoint{Name: "same", Service: "svc", ServiceID: "id", Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Aliases: []string{"alias", "other"}}
		if i%2 == 0 {
			e.VIP = netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		}
		if err := d.Put(strconv.Itoa(i), e); err != nil {
			t.Fatal(err)
		}
	}
	names := d.Names()
	if len(names["same"]) != n || len(names["tasks.svc"]) != n || len(names["alias"]) != n || len(d.Owners()) != n+n/2 || len(d.Services()) != n/2 {
		t.Errorf("%d addresses of the name, %d of tasks, %d of the alias, %d owners, %d services", len(names["same"]), len(names["tasks.svc"]), len(names["alias"]), len(d.Owners()), len(d.Services()))
	}
	for i := range n {
		d.Drop(strconv.Itoa(i))
	}
	// Endpoints that clash with all of a service.
	vip := ip("10.3.0.1")
	for i := range n {
		if err := d.Put(strconv.Itoa(i), gossip.Endpoint{Name: "x", Addr: ip("10.3.0.2"), VIP: vip}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if err := d.Put(strconv.Itoa(n+i), gossip.Endpoint{Name: "x", Addr: vip}); err == nil {
			t.Fatal("an endpoint has a service's address")
		}
	}
	for i := range n {
		d.Drop(strconv.Itoa(i))
	}
	if len(d.Names()) != 0 {
		t.Errorf("names of nobody: %v", d.Names())
	}
	if err := d.Put("web", gossip.Endpoint{Name: "web", Addr: ip("10.2.0.2")}); err != nil {
		t.Errorf("at the address of a service that is gone: %v", err)
	}
}

// TestAFloodOfNames: records of many aliases do not take the node's memory. An earlier name stays, and
// there is room again when they are gone.
func TestAFloodOfNames(t *testing.T) {
	d := New(Network{Title: "back", Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	put(t, d, gossip.Endpoint{Name: "web", Addr: ip("10.2.0.2")})
	const records = maxCalled/512 + 10
	taken := 0
	for i := range records {
		e := gossip.Endpoint{Name: "x", Service: "x", Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
		for j := range 256 {
			e.Aliases = append(e.Aliases, "alias-"+strconv.Itoa(j))
		}
		switch err := d.Put(strconv.Itoa(i), e); {
		case err == nil:
			taken++
		case !errdefs.IsResourceExhausted(err):
			t.Fatal(err)
		}
	}
	if names := d.Names(); taken == 0 || taken >= records || d.called > maxCalled || len(names["web"]) != 1 {
		t.Errorf("%d records are taken, with %d names; web is %v", taken, d.called, names["web"])
	}
	for i := range records {
		d.Drop(strconv.Itoa(i))
	}
	if names := d.Names(); d.called != 1 || len(names) != 2 {
		t.Errorf("when they are gone there are %d names", d.called)
	}
}
