package vxlan_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// node is a machine with the address 192.0.2.N.
type node struct {
	t   *testing.T
	n   int
	ns  *networktest.Namespace
	dir string
	net *vxlan.Network
}

// newNodes makes machines on one link.
func newNodes(t *testing.T, count int) (list []*node) {
	t.Helper()
	networktest.Run(t, "nft flush ruleset") // the wire between the nodes has no firewall
	networktest.Run(t, "ip link add wire type bridge")
	networktest.Run(t, "ip link set wire up")
	for i := 1; i <= count; i++ {
		n := &node{t: t, n: i, ns: networktest.NewNamespace(t), dir: t.TempDir()}
		networktest.Run(t, fmt.Sprintf("ip link add w%d master wire type veth peer name eth0 netns %s", i, n.ns.Path))
		networktest.Run(t, fmt.Sprintf("ip link set w%d up", i))
		n.run("ip link set lo up")
		n.run("ip addr add " + n.addr().String() + "/24 dev eth0")
		n.run("ip link set eth0 up")
		list = append(list, n)
	}
	return list
}

func (n *node) addr() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n.n)}) }

func (n *node) run(line string) string {
	n.t.Helper()
	return networktest.Run(n.t, "nsenter --net="+n.ns.Path+" "+line)
}

// inside runs a program in the network's namespace.
func (n *node) inside(line string) string {
	n.t.Helper()
	return networktest.Run(n.t, "nsenter --net="+n.dir+"/app "+line)
}

func (n *node) def(subnets ...vxlan.Subnet) vxlan.Definition {
	if len(subnets) == 0 {
		subnets = []vxlan.Subnet{{Range: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"), VNI: 4097}}
	}
	return vxlan.Definition{Name: "app", Subnets: subnets, MTU: 1450, Local: n.addr()}
}

// try opens a network as an agent on this machine does.
func (n *node) try(def vxlan.Definition) (net *vxlan.Network, err error) {
	err = n.ns.Try(func() error {
		net, err = vxlan.Open(n.dir, def, slog.New(slog.NewTextHandler(n.t.Output(), nil)))
		return err
	})
	return net, err
}

func (n *node) open(subnets ...vxlan.Subnet) {
	n.t.Helper()
	var err error
	if n.net, err = n.try(n.def(subnets...)); err != nil {
		if errdefs.IsFailedPrecondition(err) {
			n.t.Skipf("%v", err)
		}
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := vxlan.Remove(n.dir, "app"); err != nil {
			n.t.Error(err)
		}
	})
}

// task is a namespace on a network, at an address that is also its key.
type task struct {
	ns   *networktest.Namespace
	addr netip.Addr
	on   *node
}

func (n *node) task(prefix string) task {
	n.t.Helper()
	p := netip.MustParsePrefix(prefix)
	x := task{networktest.NewNamespace(n.t), p.Addr(), n}
	x.attach(prefix)
	return x
}

func (x task) attach(prefix string) {
	x.on.t.Helper()
	got, err := x.on.net.Attach(x.ns.Path, vxlan.Attachment{Key: x.addr.String(), Interface: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(prefix)}})
	if err != nil {
		x.on.t.Fatal(err)
	}
	if got.MAC != vxlan.MACFor(x.addr) {
		x.on.t.Errorf("mac %s", got.MAC)
	}
}

// peer is a task as its node tells of it.
func (x task) peer() vxlan.Peer {
	return vxlan.Peer{Addr: x.addr, MAC: vxlan.MACFor(x.addr), Node: x.on.addr()}
}

// knows has a node know tasks.
func (n *node) knows(tasks ...task) {
	n.t.Helper()
	list := map[string]vxlan.Peer{}
	for _, x := range tasks {
		list[x.addr.String()] = x.peer()
	}
	if err := n.net.SetPeers(list); err != nil {
		n.t.Fatal(err)
	}
}

func (x task) reaches(other task, port uint16) {
	x.on.t.Helper()
	if got, err := x.ns.Ask("tcp", netip.AddrPortFrom(other.addr, port).String()); err != nil || got != x.addr.String() {
		x.on.t.Errorf("%s to %s: served as %q, %v", x.addr, other.addr, got, err)
	}
}

// fills sends a packet of a size to another task, that must not be split.
func (x task) fills(other task, size int) {
	x.on.t.Helper()
	var to net.PacketConn
	other.ns.Do(x.on.t, func() (err error) {
		to, err = new(net.ListenConfig).ListenPacket(x.on.t.Context(), "udp4", netip.AddrPortFrom(other.addr, 81).String())
		return err
	})
	defer func() { _ = to.Close() }()
	x.ns.Do(x.on.t, func() error {
		whole := func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			})
		}
		c, err := (&net.Dialer{Control: whole}).DialContext(x.on.t.Context(), "udp4", to.LocalAddr().String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write(make([]byte, size)); !errors.Is(err, unix.EMSGSIZE) {
			x.on.t.Errorf("a packet that is too large: %v", err)
		}
		_, err = c.Write(make([]byte, size-28))
		return err
	})
	_ = to.SetReadDeadline(time.Now().Add(roottest.Patience()))
	if got, _, err := to.ReadFrom(make([]byte, 2*size)); err != nil || got != size-28 {
		x.on.t.Errorf("%d bytes of %d came, %v", got, size-28, err)
	}
}

// entries are those of other nodes' interfaces.
func (n *node) entries() string {
	n.t.Helper()
	var lines []string
	for line := range strings.Lines(n.inside("bridge fdb show brport vx0") + n.inside("ip neigh show dev vx0 nud permanent")) {
		if strings.Contains(line, " dst ") && strings.Contains(line, " permanent") || strings.Contains(line, "PERMANENT") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

func (n *node) want(has string, entries int) {
	n.t.Helper()
	got := n.entries()
	count := 0
	if got != "" {
		count = strings.Count(got, "\n") + 1
	}
	if !strings.Contains(got, has) || count != entries {
		n.t.Errorf("node %d has %d entries, want %d with %q:\n%s", n.n, count, entries, has, got)
	}
}

// TestTasksReachEachOther: on one node, over nodes, in both directions; the next process adopts all
// of it, and removes peers that nobody reports any more.
func TestTasksReachEachOther(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 3)
		var tasks []task
		for i, n := range nodes {
			n.open()
			x := n.task(fmt.Sprintf("10.0.1.1%d/24", i))
			x.ns.Serve(t, "tcp", 80)
			tasks = append(tasks, x)
		}
		beside := nodes[0].task("10.0.1.20/24")
		beside.reaches(tasks[0], 80)
		for i, n := range nodes {
			for j, x := range append(tasks, beside) {
				if i != j%3 {
					n.knows(x)
				}
			}
		}
		for _, x := range append(tasks, beside) {
			for _, y := range tasks {
				x.reaches(y, 80)
			}
		}
		if out := networktest.Run(t, "nsenter --net="+tasks[0].ns.Path+" ip link show eth0"); !strings.Contains(out, "mtu 1450") {
			t.Errorf("interface: %s", out)
		}
		// The kernel soon asks again for an unknown neighbour.
		tasks[0].ns.Do(t, func() error {
			every, err := os.ReadFile("/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms")
			times, err2 := os.ReadFile("/proc/sys/net/ipv4/neigh/eth0/mcast_solicit")
			if string(every) != "100\n" || string(times) != "30\n" {
				t.Errorf("neighbours are asked for each %q ms, %q times", every, times)
			}
			return errors.Join(err, err2)
		})
		// A packet that fills the interface arrives whole.
		tasks[1].fills(tasks[0], 1450)

		links := nodes[0].inside("ip -o link")
		next, err := nodes[0].try(nodes[0].def())
		if err != nil {
			t.Fatal(err)
		}
		if now := nodes[0].inside("ip -o link"); now != links {
			t.Errorf("the devices were\n%s\nand are\n%s", links, now)
		}
		nodes[0].net = next
		if got := next.Attached(); len(got) != 2 || got[0].Key != "10.0.1.10" || got[1].Addrs[0].String() != "10.0.1.20/24" || next.Peers() != 2 {
			t.Errorf("adopted %+v, %d peers", got, next.Peers())
		}
		nodes[0].want("", 4)
		nodes[0].knows(tasks[2])
		if err := next.Prune(); err != nil {
			t.Fatal(err)
		}
		nodes[0].want("10.0.1.12 ", 2)
		tasks[0].reaches(tasks[2], 80)
		if err := next.Detach("10.0.1.20"); err != nil {
			t.Fatal(err)
		}
		if err := next.Detach("10.0.1.20"); err != nil {
			t.Error(err)
		}
		if out := networktest.Run(t, "nsenter --net="+beside.ns.Path+" ip -o link"); strings.Contains(out, "eth0") {
			t.Errorf("left in the sandbox: %s", out)
		}

		// Another with the same id on this machine; and again as soon as it is removed.
		second := nodes[0].def()
		second.Name = "second"
		if _, err := nodes[0].try(second); !errdefs.IsAlreadyExists(err) {
			t.Errorf("an id that is taken: %v", err)
		}
		for range 3 {
			if err := errors.Join(vxlan.Remove(nodes[0].dir, "second"), vxlan.Remove(nodes[0].dir, "app")); err != nil {
				t.Fatal(err)
			}
			if list, err := vxlan.List(nodes[0].dir); err != nil || len(list) != 0 {
				t.Errorf("left: %v, %v", list, err)
			}
			nodes[0].open()
		}
	})
}

// TestATaskMoves: two nodes tell of one address for a while. The last word counts, and taking back
// the former one takes nothing else away; one that is here counts more than any word.
func TestATaskMoves(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 1)
		n := nodes[0]
		n.open()
		at := func(node byte) vxlan.Peer {
			return vxlan.Peer{Addr: netip.MustParseAddr("10.0.1.9"), MAC: "02:42:0A:00:01:09", Node: netip.AddrFrom4([4]byte{192, 0, 2, node})}
		}
		set := func(key string, p vxlan.Peer) {
			t.Helper()
			if err := n.net.SetPeer(key, p); err != nil {
				t.Fatal(err)
			}
		}
		drop := func(key string) {
			t.Helper()
			if err := n.net.DropPeer(key); err != nil {
				t.Fatal(err)
			}
		}
		set("old", at(8))
		n.want("dst 192.0.2.8", 2)
		set("new", at(9))
		n.want("dst 192.0.2.9", 2)
		drop("old")
		n.want("dst 192.0.2.9", 2)
		drop("old")
		set("old", at(8))
		drop("old")
		n.want("dst 192.0.2.9", 2)
		x := n.task("10.0.1.9/24")
		n.want("", 0)
		set("late", at(8))
		n.want("", 0)
		if err := n.net.Detach("10.0.1.9"); err != nil {
			t.Fatal(err)
		}
		n.want("dst 192.0.2.8", 2)
		drop("late")
		n.want("dst 192.0.2.9", 2)
		// Another address and MAC by the same key.
		other := at(9)
		other.Addr, other.MAC = netip.MustParseAddr("10.0.1.10"), "02:42:0a:00:01:0a"
		set("new", other)
		n.want("10.0.1.10 ", 2)
		bad := other
		bad.Node = n.addr()
		if err := n.net.SetPeer("new", bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a peer here: %v", err)
		}
		n.want("", 0)
		x.attach("10.0.1.9/24")
	})
}

// TestWhatNobodyMayTell: an entry of an address or a MAC that cannot be another node's changes
// nothing, and keeps none of the others from being set.
func TestWhatNobodyMayTell(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNodes(t, 1)[0]
		n.open()
		mac := strings.Fields(strings.SplitAfter(n.inside("ip -o link show br0"), "link/ether ")[1])[0]
		good := vxlan.Peer{Addr: netip.MustParseAddr("10.0.1.9"), MAC: "02:42:0a:00:01:09", Node: netip.MustParseAddr("192.0.2.9")}
		list := map[string]vxlan.Peer{"good": good}
		for _, s := range []string{"10.0.1.0", "10.0.1.1", "10.0.1.255", "10.0.2.9", "192.0.2.1", "fd00::1", "0.0.0.0"} {
			p := good
			p.Addr = netip.MustParseAddr(s)
			list["address "+s] = p
		}
		for _, s := range []string{"", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:42:0a:00:01", "x", mac} {
			p := good
			p.MAC = s
			list["mac "+s] = p
		}
		for _, s := range []string{n.addr().String(), "127.0.0.1", "224.0.0.1", "0.0.0.0", "2001:db8::1"} {
			p := good
			p.Node = netip.MustParseAddr(s)
			list["node "+s] = p
		}
		list["nothing"] = vxlan.Peer{}
		err := n.net.SetPeers(list)
		if !errdefs.IsInvalidArgument(err) || strings.Count(err.Error(), "\n") != len(list)-2 {
			t.Errorf("%d of %d are refused: %v", strings.Count(fmt.Sprint(err), "\n")+1, len(list)-1, err)
		}
		n.want("192.0.2.9", 2)
		ns := networktest.NewNamespace(t)
		for name, a := range map[string]vxlan.Attachment{
			"no key": {Interface: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/24")}}, "no address": {Key: "k", Interface: "eth0"},
			"gateway": {Key: "k", Interface: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24")}}, "prefix": {Key: "k", Interface: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/16")}},
			"elsewhere": {Key: "k", Interface: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.2.9/24")}}, "name": {Key: "k", Interface: "a/b", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/24")}},
			"mac": {Key: "k", Interface: "eth0", MAC: "01:00:5e:00:00:01", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/24")}},
		} {
			if _, err := n.net.Attach(ns.Path, a); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		x := n.task("10.0.1.30/24")
		taken := vxlan.Attachment{Key: "k", Interface: "eth1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.30/24")}}
		if _, err := n.net.Attach(ns.Path, taken); !errdefs.IsAlreadyExists(err) {
			t.Errorf("an address that is taken: %v", err)
		}
		taken.Interface, taken.Addrs[0] = "eth0", netip.MustParsePrefix("10.0.1.31/24")
		if _, err := n.net.Attach(x.ns.Path, taken); !errdefs.IsAlreadyExists(err) {
			t.Errorf("an interface that is taken: %v", err)
		}
		if out := n.inside("ip -o link show type veth"); strings.Count(out, "\n") != 1 {
			t.Errorf("left: %s", out)
		}
	})
}

// TestSubnets: tasks on two subnets of a network reach each other, over nodes; and two thousand
// entries are made, adopted and removed in a moment.
func TestSubnets(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		subnets := []vxlan.Subnet{
			{Range: netip.MustParsePrefix("10.0.0.0/20"), Gateway: netip.MustParseAddr("10.0.0.1"), VNI: 4097},
			{Range: netip.MustParsePrefix("10.1.0.0/24"), Gateway: netip.MustParseAddr("10.1.0.1"), VNI: 4098},
		}
		a, b := nodes[0], nodes[1]
		a.open(subnets...)
		b.open(subnets...)
		x, y := a.task("10.0.0.9/20"), b.task("10.1.0.9/24")
		a.knows(y)
		b.knows(x)
		y.ns.Serve(t, "tcp", 80)
		x.ns.Serve(t, "tcp", 80)
		x.reaches(y, 80)
		y.reaches(x, 80)
		list := map[string]vxlan.Peer{}
		for addr := netip.MustParseAddr("10.0.1.0"); len(list) < 2000; addr = addr.Next() {
			list[addr.String()] = vxlan.Peer{Addr: addr, MAC: vxlan.MACFor(addr), Node: b.addr()}
		}
		began := time.Now()
		if err := a.net.SetPeers(list); err != nil {
			t.Fatal(err)
		}
		set := time.Now()
		next, err := a.try(a.def(subnets...))
		if err != nil || next.Peers() != 2001 {
			t.Fatalf("adopted %d, %v", next.Peers(), err)
		}
		adopted := time.Now()
		if err := next.Prune(); err != nil || next.Peers() != 0 {
			t.Errorf("left %d, %v", next.Peers(), err)
		}
		t.Logf("2000 entries: set in %s, adopted in %s, removed in %s", set.Sub(began), adopted.Sub(set), time.Since(adopted))
		a.want("", 0)
		if _, err := os.Stat(a.dir + "/app"); err != nil {
			t.Error(err)
		}
	})
}
