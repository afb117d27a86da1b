package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// anOverlay is one with a range 10.99.n.0/24.
func anOverlay(n int) core.Overlay {
	return core.Overlay{
		Name: fmt.Sprintf("net%d", n), MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"),
		Subnets: []core.OverlaySubnet{{
			Range:   netip.MustParsePrefix(fmt.Sprintf("10.99.%d.0/24", n)),
			Gateway: netip.MustParseAddr(fmt.Sprintf("10.99.%d.1", n)), VNI: uint32(4096 + n),
		}},
	}
}

func (r *rig) open(list ...core.Overlay) {
	r.t.Helper()
	r.t.Cleanup(func() {
		for _, o := range list {
			if err := vxlan.Remove(filepath.Join(r.dir, "overlays"), o.Name); err != nil {
				r.t.Error(err)
			}
		}
	})
	for _, o := range list {
		if err := r.net.Overlays.Open(r.t.Context(), o); err != nil {
			r.t.Fatal(err)
		}
	}
}

// on is an interface on an overlay with the last byte of its address.
func on(n, last int) core.Attachment {
	return core.Attachment{Network: core.OverlayNetwork(fmt.Sprintf("net%d", n)), Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.99.%d.%d/24", n, last))}}
}

// task sets a sandbox up as a task is: on overlays, and on the default network.
func (r *rig) task(n int, attach ...core.Attachment) box {
	r.t.Helper()
	ns := networktest.NewNamespace(r.t)
	req := r.request(ns, n)
	req.Config.Attach = append(attach, core.Attachment{Network: core.NetworkDefault})
	req.Config.Name = attach[0].Network
	return r.do(ns, req)
}

func (r *rig) recover(boxes ...box) {
	r.t.Helper()
	var live []core.NetworkRequest
	for _, b := range boxes {
		live = append(live, b.req)
	}
	if err := r.net.Recover(r.t.Context(), live); err != nil {
		r.t.Fatal(err)
	}
}

// rules lists a table in a sandbox's namespace.
func (b box) rules(t *testing.T, table string) string {
	t.Helper()
	return networktest.Run(t, "nsenter --net="+b.ns.Path+" nft list table inet "+table)
}

// index returns the kernel's number of an interface; one that is made again has another.
func (b box) index(t *testing.T, name string) string {
	t.Helper()
	var first string
	for _, f := range strings.Fields(b.ip(t, "-o", "link", "show", "dev", name)) {
		first = f
		break
	}
	return first
}

// TestTasksOnOverlays: interfaces in their order, the way out over the bridge, and all of it after
// the agent starts again.
func TestTasksOnOverlays(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		r.open(anOverlay(1), anOverlay(2))
		one, two := r.task(1, on(1, 7), on(2, 7)), r.task(2, on(1, 8))
		for _, p := range []string{"tcp", "udp"} {
			one.ns.Serve(t, p, 80)
			out.ns.Serve(t, p, 80)
		}
		var got []string
		for _, i := range one.req.Last.Interfaces {
			got = append(got, i.Interface+" "+i.Network)
		}
		if want := []string{"eth0 overlay:net1", "eth1 overlay:net2", "eth2 default"}; !slices.Equal(got, want) {
			t.Errorf("interfaces %q, want %q", got, want)
		}
		if a := one.req.Last.Addrs; len(a) != 3 || a[0] != netip.MustParseAddr("10.99.1.7") || a[1] != netip.MustParseAddr("10.99.2.7") {
			t.Errorf("addresses: %v", a)
		}
		wantWorks := func() {
			t.Helper()
			r.check(one)
			r.check(two)
			one.wantWay(t, "eth2")
			wantAnswer(t, two.ns, "tcp", "10.99.1.7:80", "10.99.1.8")
			wantAnswer(t, one.ns, "tcp", at(out.addr4, 80), out.host4.String())
		}
		wantWorks()
		before := one.index(t, "eth0") + one.index(t, "eth1")
		// One that the engine has not recorded.
		lost := r.task(3, on(1, 9), on(2, 9))
		r.start()
		if list := r.net.Overlays.List(); len(list) != 2 || list[0].Name != "net1" || list[0].Subnets[0] != anOverlay(1).Subnets[0] {
			t.Errorf("after a start: %+v", list)
		}
		r.recover(one, two)
		wantWorks()
		if after := one.index(t, "eth0") + one.index(t, "eth1"); after != before {
			t.Errorf("interfaces %s were %s", after, before)
		}
		if text := lost.ip(t, "-o", "link"); strings.Contains(text, "eth0") || strings.Contains(text, "eth1") {
			t.Errorf("interfaces of a sandbox without a record: %s", text)
		}
		r.open(anOverlay(1)) // as before
		r.wantSandboxes(one, two)
		if err := r.net.Overlays.Close(t.Context(), "net2"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("closed with a sandbox: %v", err)
		}
		// While it runs.
		r.attach(&two, on(2, 8))
		wantAnswer(t, two.ns, "tcp", "10.99.2.7:80", "10.99.2.8")
		r.wantInterfaces(two, "eth0", "eth1", "eth2")
		r.detach(&two, "overlay:net1")
		if text := two.ip(t, "-o", "link"); strings.Contains(text, "eth0") {
			t.Errorf("detached: %s", text)
		}
		r.wantInterfaces(two, "eth1", "eth2")
		r.down(one)
		r.down(two)
		r.wantSandboxes()
		if text := two.ip(t, "-o", "link"); strings.Contains(text, "eth2") {
			t.Errorf("torn down: %s", text)
		}
		if err := r.net.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Join(r.dir, "overlays")); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		if list := r.net.Overlays.List(); len(list) != 0 {
			t.Errorf("left: %+v", list)
		}
	})
}

func (r *rig) wantSandboxes(boxes ...box) {
	r.t.Helper()
	var want []core.ID
	for _, b := range boxes {
		want = append(want, b.req.Sandbox)
	}
	if got, err := r.net.Sandboxes(r.t.Context()); err != nil || !slices.Equal(got, want) && len(got)+len(want) > 0 {
		r.t.Errorf("sandboxes %v, %v; want %v", got, err, want)
	}
}

func (r *rig) wantInterfaces(b box, want ...string) {
	r.t.Helper()
	stats, err := r.net.Stats(r.t.Context(), []core.NetworkRequest{b.req})
	var got []string
	for _, s := range stats[b.req.Sandbox] {
		if got = append(got, s.Name); s.TxBytes == 0 && s.Name != "eth1" { // nothing leaves by the default network
			r.t.Errorf("counters: %+v", s)
		}
	}
	if slices.Sort(got); err != nil || !slices.Equal(got, want) {
		r.t.Errorf("counters of %v, %v; want %v", got, err, want)
	}
}

// TestWhatOverlaysSendToNodesIsNoConnection: while there is an overlay, and after a start also where somebody
// has taken the rules away.
func TestWhatOverlaysSendToNodesIsNoConnection(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		want := func(ports ...string) {
			t.Helper()
			text, list := networktest.Run(t, "nft -s list ruleset"), []string{}
			for _, m := range regexp.MustCompile(`daddr (\S+) udp dport (\d+) notrack`).FindAllStringSubmatch(text, -1) {
				list = append(list, m[1]+":"+m[2])
			}
			if !slices.Equal(list, ports) || len(ports) == 0 && strings.Contains(text, "longshore-untracked") {
				t.Errorf("%q, want %q:\n%s", list, ports, text)
			}
		}
		one, two, three := anOverlay(1), anOverlay(2), anOverlay(3)
		two.Port = 4790
		local := one.Local.String()
		want()
		r.open(one)
		r.open(three)
		want(local + ":4789")
		r.open(two)
		want(local+":4789", local+":4790")
		networktest.Run(t, "nft delete table inet longshore-untracked")
		r.start()
		r.recover()
		want(local+":4789", local+":4790")
		two.Port = 4791
		r.open(two)
		want(local+":4789", local+":4791")
		for _, c := range []struct {
			name  string
			ports []string
		}{{one.Name, []string{local + ":4789", local + ":4791"}}, {three.Name, []string{local + ":4791"}}, {two.Name, nil}} {
			if err := r.net.Overlays.Close(t.Context(), c.name); err != nil {
				t.Fatal(err)
			}
			want(c.ports...)
		}
		// The store is lost, and the data path is not.
		r.open(one)
		if err := r.kv.Delete("overlay/" + one.Name); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.recover()
		want()
	})
}

// TestAnOverlayIsMadeAgain: somebody has removed its namespace.
func TestAnOverlayIsMadeAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.open(anOverlay(1))
		one, two := r.task(1, on(1, 7)), r.task(2, on(1, 8))
		networktest.Run(t, "umount -l "+filepath.Join(r.dir, "overlays", "net1"))
		if err := r.net.Check(t.Context(), one.req); err == nil {
			t.Error("check finds nothing missing")
		}
		r.down(one)
		roottest.Eventually(t, "the kernel removes the namespace, and its VXLAN id is free", func() bool {
			return r.net.Overlays.Open(t.Context(), anOverlay(1)) == nil
		})
		r.down(two)
		r.wantSandboxes()
		one, two = r.task(1, on(1, 7)), r.task(2, on(1, 8))
		one.ns.Serve(t, "tcp", 80)
		wantAnswer(t, two.ns, "tcp", "10.99.1.7:80", "10.99.1.8")
		r.down(one)
		r.down(two)
	})
}

// TestANeighbourIsNoRouter: one task's words on routers in IPv6 change nothing for another.
func TestANeighbourIsNoRouter(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		six := anOverlay(2)
		six.Subnets[0].Range, six.Subnets[0].Gateway = netip.MustParsePrefix("fd99::/64"), netip.MustParseAddr("fd99::1")
		r.open(anOverlay(1), six)
		a := on(2, 7)
		a.Addrs = []netip.Prefix{netip.MustParsePrefix("fd99::7/64")}
		one := r.task(1, on(1, 7), a)
		if text := one.ip(t, "-6", "-o", "address", "show", "dev", "eth0"); text != "" {
			t.Errorf("without an address of IPv6 it has %s", text)
		}
		for setting, want := range map[string]string{"eth0/disable_ipv6": "1", "eth1/disable_ipv6": "0", "eth1/accept_ra": "0"} {
			if got := strings.TrimSpace(networktest.Run(t, "nsenter --net="+one.ns.Path+" cat /proc/sys/net/ipv6/conf/"+setting)); got != want {
				t.Errorf("%s is %s", setting, got)
			}
		}
		r.down(one)
	})
}

// TestOverlaysThatCannotBe: an overlay that collides with something of this node changes nothing.
func TestOverlaysThatCannotBe(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.77.0.0/16" })
		r.define(core.NetworkDefinition{Name: "user", Subnets: []core.Subnet{{Range: netip.MustParsePrefix("10.78.0.0/24")}}})
		r.open(anOverlay(1))
		networktest.Run(t, "ip link add foreign type vxlan id 5000 dstport 4789")
		before := links(t)
		for name, c := range map[string]struct {
			change func(*core.Overlay)
			class  func(error) bool
			says   string
		}{
			"builtin":   {func(o *core.Overlay) { move(o, "10.77.5.0/24") }, errdefs.IsAlreadyExists, "the builtin network"},
			"user":      {func(o *core.Overlay) { move(o, "10.78.0.0/16") }, errdefs.IsAlreadyExists, "network user"},
			"overlay":   {func(o *core.Overlay) { move(o, "10.99.0.0/16") }, errdefs.IsAlreadyExists, "overlay net1"},
			"id":        {func(o *core.Overlay) { o.Subnets[0].VNI = 4097 }, errdefs.IsAlreadyExists, "vxlan id 4097"},
			"foreign":   {func(o *core.Overlay) { o.Subnets[0].VNI = 5000 }, errdefs.IsAlreadyExists, "vxlan id 5000"},
			"no id":     {func(o *core.Overlay) { o.Subnets[0].VNI = 0 }, errdefs.IsInvalidArgument, "vxlan id 0"},
			"no subnet": {func(o *core.Overlay) { o.Subnets = nil }, errdefs.IsInvalidArgument, "no subnet"},
			"mtu":       {func(o *core.Overlay) { o.MTU = 65500 }, errdefs.IsInvalidArgument, "mtu 65500"},
			"no mtu":    {func(o *core.Overlay) { o.MTU = 0 }, errdefs.IsInvalidArgument, "mtu 0"},
			"path":      {func(o *core.Overlay) { o.Name = "../x" }, errdefs.IsInvalidArgument, "name"},
			"hidden":    {func(o *core.Overlay) { o.Name = ".x" }, errdefs.IsInvalidArgument, "name"},
		} {
			o := anOverlay(2)
			c.change(&o)
			err := r.net.Overlays.Open(t.Context(), o)
			if !c.class(err) || !strings.Contains(fmt.Sprint(err), c.says) || strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if list := r.net.Overlays.List(); len(list) != 1 {
			t.Errorf("open: %+v", list)
		}
		if left, err := os.ReadDir(filepath.Join(r.dir, "overlays")); err != nil || len(left) != 1 {
			t.Errorf("made: %v, %v", left, err)
		}
		if after := links(t); after != before {
			t.Errorf("links %s, before %s", after, before)
		}
		// Nobody is on it: it may become another one.
		o := anOverlay(1)
		move(&o, "10.99.3.0/24")
		r.open(o, anOverlay(2))
		one := r.task(1, on(2, 7))
		o = anOverlay(2)
		o.MTU = 1400
		if err := r.net.Overlays.Open(t.Context(), o); !errdefs.IsAlreadyExists(err) {
			t.Errorf("changed under a sandbox: %v", err)
		}
		// Bad interfaces leave nothing.
		for name, a := range map[string]core.Attachment{
			"gateway": on(2, 1), "range": on(2, 0), "broadcast": on(2, 255), "taken": on(2, 7), "other network": {Network: "overlay:net2", Addrs: on(1, 9).Addrs},
			"none": {Network: "overlay:net2"}, "not open": on(9, 9), "path": {Network: "overlay:../net2", Addrs: on(2, 9).Addrs},
		} {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, 2, port("tcp", 8080, 80))
			req.Config.Attach = []core.Attachment{a, {Network: core.NetworkDefault}}
			if st, err := r.net.Setup(t.Context(), req); err == nil {
				t.Errorf("%s: %+v", name, st)
			}
			r.wantSandboxes(one)
		}
	})
}

// move gives an overlay another range.
func move(o *core.Overlay, cidr string) {
	o.Subnets[0].Range = netip.MustParsePrefix(cidr)
	o.Subnets[0].Gateway = o.Subnets[0].Range.Addr().Next()
}

// TestTheBuiltinNetworkMakesRoom: its range was chosen by us, and the cluster's is not ours to
// choose.
func TestTheBuiltinNetworkMakesRoom(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		before := r.setup(1)
		info, err := r.net.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o := anOverlay(1)
		move(&o, netip.PrefixFrom(info.Ranges[0].Addr(), 24).String())
		r.open(o)
		a := on(1, 7)
		a.Addrs = []netip.Prefix{netip.PrefixFrom(o.Subnets[0].Gateway.Next(), 24)} // as before's
		task := r.task(2, a)
		out.ns.Serve(t, "tcp", 80)
		for range 2 {
			for _, b := range []box{before, task} {
				r.check(b)
				wantAnswer(t, b.ns, "tcp", at(out.addr4, 80), out.host4.String())
			}
			r.start()
			r.recover(before, task)
		}
		if addr := task.req.Last.Addrs[1]; o.Subnets[0].Range.Contains(addr) {
			t.Errorf("address %s is one of the overlay's", addr)
		}
	})
}

// TestServices: VIPs of two networks in one sandbox, bad ones among them, an agent that starts
// again and hears of one network after the other.
func TestServices(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.open(anOverlay(1), anOverlay(2))
		one := r.task(1, on(1, 7), on(2, 7))
		one.ns.Serve(t, "tcp", 80)
		ip := netip.MustParseAddr
		service := func(vip string, backends ...string) core.OverlayService {
			s := core.OverlayService{Addr: ip(vip)}
			for _, b := range backends {
				s.Backends = append(s.Backends, core.OverlayBackend{Addr: ip(b)})
			}
			return s
		}
		set := func(name string, list ...core.OverlayService) error {
			t.Helper()
			return r.net.Overlays.SetServices(t.Context(), name, list)
		}
		bad := []core.OverlayService{
			service("10.99.1.1", "10.99.1.7"), service("10.99.2.100", "10.99.2.7"), service("8.8.8.8", "10.99.1.7"), service("10.99.1.255"), {}, service("127.0.0.1"), service("10.99.1.100", "10.99.1.8"),
		}
		err := set("net1", append([]core.OverlayService{service("10.99.1.100", "10.99.1.7", "10.99.1.7", "10.99.2.7", "10.99.1.1", "::1", "10.99.1.101"), service("10.99.1.101", "10.99.1.7")}, bad...)...)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "10.99.1.1:") || !strings.Contains(err.Error(), "more") || strings.Contains(err.Error(), "\n") {
			t.Errorf("bad services: %v", err)
		}
		if err := set("net2", service("10.99.2.100", "10.99.2.7")); err != nil {
			t.Fatal(err)
		}
		two := r.task(2, on(1, 8), on(2, 8)) // has them before its program starts
		works := func() {
			t.Helper()
			wantAnswer(t, two.ns, "tcp", "10.99.1.100:80", "10.99.1.8")
			wantAnswer(t, two.ns, "tcp", "10.99.1.101:80", "10.99.1.8")
			wantAnswer(t, two.ns, "tcp", "10.99.2.100:80", "10.99.2.8")
		}
		works()
		if text := two.rules(t, "longshore-balance"); strings.Contains(text, "8.8.8.8") || !strings.Contains(text, "10.99.1.101") {
			t.Errorf("rules: %s", text)
		}
		r.start()
		r.recover(one, two)
		works()
		if err := set("net1", service("10.99.1.100", "10.99.1.7"), service("10.99.1.101", "10.99.1.7")); err != nil {
			t.Fatal(err)
		}
		works() // nobody has told of net2's yet
		if err := r.net.Overlays.Prune(t.Context(), "net2"); err != nil {
			t.Fatal(err)
		}
		if text := two.rules(t, "longshore-balance"); strings.Contains(text, "10.99.2.100") {
			t.Errorf("a service of which nobody has told: %s", text)
		}
		if err := set("net2", service("10.99.2.100", "10.99.2.7")); err != nil {
			t.Fatal(err)
		}
		works()
		// One that has broken its own rules does not keep another from its services.
		networktest.Run(t, "nsenter --net="+one.ns.Path+" nft delete table inet longshore-balance")
		if err := set("net2", service("10.99.2.100", "10.99.2.7"), service("10.99.2.101", "10.99.2.7")); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, two.ns, "tcp", "10.99.2.101:80", "10.99.2.8")
		wantAnswer(t, one.ns, "tcp", "10.99.1.100:80", "10.99.1.7")
		r.detach(&two, "overlay:net2")
		wantAnswer(t, two.ns, "tcp", "10.99.1.100:80", "10.99.1.8")
		r.down(one)
		r.down(two)
	})
}

// TestOpenPorts: an interface is closed but for its ports, the others are as they were.
func TestOpenPorts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.open(anOverlay(1), anOverlay(2))
		closed := on(1, 7)
		closed.Open = []core.Port{{Proto: "tcp", Host: 8080, Container: 80}, {Proto: "udp", Host: 8080, Container: 80}}
		one, two := r.task(1, closed, on(2, 7)), r.task(2, on(1, 8), on(2, 8))
		one.ns.Serve(t, "tcp", 80)
		one.ns.Serve(t, "udp", 80)
		works := func() {
			t.Helper()
			wantAnswer(t, two.ns, "tcp", "10.99.1.7:8080", "10.99.1.8")
			wantAnswer(t, two.ns, "udp", "10.99.1.7:8080", "10.99.1.8")
			before := one.rules(t, "longshore-exposed")
			two.ns.Do(t, func() error {
				conn, err := net.Dial("udp", "10.99.1.7:80") //nolint:noctx // it only makes a socket
				if err != nil {
					return err
				}
				_, err = conn.Write([]byte("closed"))
				return errors.Join(err, conn.Close())
			})
			roottest.Eventually(t, "what is sent to a closed port is dropped and counted", func() bool { return one.rules(t, "longshore-exposed") != before })
			wantAnswer(t, two.ns, "tcp", "10.99.2.7:80", "10.99.2.8")
		}
		works()
		r.start()
		r.recover(one, two)
		works()
		r.detach(&one, "overlay:net1")
		r.attach(&one, on(1, 7))
		wantAnswer(t, two.ns, "tcp", "10.99.1.7:80", "10.99.1.8")
		ns := networktest.NewNamespace(t)
		also := on(2, 9)
		also.Open = closed.Open
		for name, attach := range map[string][]core.Attachment{
			"twice": {{Network: closed.Network, Addrs: on(1, 9).Addrs, Open: closed.Open}, also}, "port 0": {{Network: closed.Network, Addrs: on(1, 9).Addrs, Open: []core.Port{{Proto: "tcp", Host: 80}}}},
			"no overlay": {on(1, 9), {Network: core.NetworkDefault, Open: closed.Open}},
		} {
			req := r.request(ns, 3)
			req.Config.Attach = attach
			if st, err := r.net.Setup(t.Context(), req); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %+v, %v", name, st, err)
			}
		}
		r.wantSandboxes(one, two)
	})
}

// TestNamesOnOverlays: a task on internal overlays alone knows names, and asks nobody else.
func TestNamesOnOverlays(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.open(anOverlay(1), anOverlay(2))
		zone := func(name, host, addr string) {
			t.Helper()
			a := netip.MustParseAddr(addr)
			if err := r.net.Overlays.SetNames(t.Context(), name, map[string][]netip.Addr{host: {a}}, map[netip.Addr]string{a: host}); err != nil {
				t.Fatal(err)
			}
		}
		zone("net1", "web", "10.99.1.100")
		zone("net2", "db", "10.99.2.100")
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.Attach, req.Config.Name = []core.Attachment{on(1, 7)}, on(1, 7).Network
		alone := r.do(ns, req)
		both := r.task(2, on(1, 8), on(2, 8))
		knows := func(b box, name, want string) {
			t.Helper()
			if got := b.ask(t, name)(); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		knows(alone, "web", "10.99.1.100")
		knows(both, "web", "10.99.1.100")
		knows(both, "db", "10.99.2.100")
		if a := alone.req.Last; a.Resolver != netip.MustParseAddr("127.0.0.11") || a.Mode != "builtin" || len(a.Interfaces) != 1 {
			t.Errorf("status: %+v", a)
		}
		r.check(alone)
		r.start()
		r.recover(alone, both)
		knows(alone, "web", "10.99.1.100")
		knows(both, "db", "10.99.2.100")
		zone("net1", "web", "10.99.1.101")
		knows(alone, "web", "10.99.1.101")
		r.check(alone)
		r.down(alone)
		r.down(both)
	})
}
