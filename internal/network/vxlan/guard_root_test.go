package vxlan_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// guardRig has two nodes on a wire and an unknown machine. Each node has a task on the network. The first node also has
// a sandbox on a bridge, with masquerading.
type guardRig struct {
	t                *testing.T
	is6              bool
	nodes            []*node
	guards           []*vxlan.Guard
	tasks            []task
	sandbox, machine *networktest.Namespace
	got              []net.PacketConn // of the tasks
}

// local is a node's address on the wire.
func (r *guardRig) local(i int) netip.Addr {
	if r.is6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:192::%d", i+1))
	}
	return r.nodes[i].addr()
}

func newGuardRig(t *testing.T, is6, guarded bool) *guardRig {
	t.Helper()
	r := &guardRig{t: t, is6: is6, nodes: newNodes(t, 3), sandbox: networktest.NewNamespace(t)}
	r.machine = r.nodes[2].ns
	for i, n := range r.nodes {
		n.run(fmt.Sprintf("ip -6 addr add fd00:192::%d/64 dev eth0 nodad", i+1))
	}
	a := r.nodes[0]
	a.run("ip link add ctr0 type bridge")
	a.run("ip addr add 172.20.0.1/24 dev ctr0")
	a.run("ip -6 addr add fd00:172::1/64 dev ctr0 nodad")
	a.run("ip link set ctr0 up")
	a.run("ip link add toctr master ctr0 type veth peer name eth0 netns " + r.sandbox.Path)
	a.run("ip link set toctr up")
	a.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.ctr0.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
	a.run("nft add table inet hide")
	a.run("nft add chain inet hide post { type nat hook postrouting priority 100 ; }")
	a.run("nft add rule inet hide post iifname ctr0 masquerade")
	for _, line := range []string{"ip link set lo up", "ip addr add 172.20.0.2/24 dev eth0", "ip -6 addr add fd00:172::2/64 dev eth0 nodad", "ip link set eth0 up", "ip route add default via 172.20.0.1", "ip -6 route add default via fd00:172::1"} {
		networktest.Run(t, "nsenter --net="+r.sandbox.Path+" "+line)
	}
	for i, n := range r.nodes[:2] {
		def := n.def()
		def.Local = r.local(i)
		if guarded {
			def.Guard = vxlan.NewGuard(slog.New(slog.NewTextHandler(t.Output(), nil)))
		}
		var err error
		if n.net, err = n.try(def); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = vxlan.Remove(n.dir, "app") })
		if guarded {
			t.Cleanup(func() { _ = def.Guard.Close() })
			r.guards = append(r.guards, def.Guard)
		}
		x := n.task(fmt.Sprintf("10.0.1.%d/24", 11+i))
		r.tasks = append(r.tasks, x)
		err = x.ns.Try(func() error {
			c, err := net.ListenPacket("udp4", ":7000") //nolint:noctx // it ends with the test
			r.got = append(r.got, c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.got[i].Close() })
	}
	for i, n := range r.nodes[:2] {
		p := r.tasks[1-i].peer()
		p.Node = r.local(1 - i)
		if err := n.net.SetPeer("other", p); err != nil {
			t.Fatal(err)
		}
	}
	r.tasks[0].ns.Serve(t, "tcp", 80)
	r.tasks[1].reaches(r.tasks[0], 80)
	return r
}

// takes sends a packet from a namespace in place of the other task, and reports whether the task of a node receives it.
func (r *guardRig) takes(i int, from *networktest.Namespace, to netip.Addr, send func(to netip.AddrPort, packet []byte) error) bool {
	r.t.Helper()
	mac, err := net.ParseMAC(vxlan.MACFor(r.tasks[i].addr))
	if err != nil {
		r.t.Fatal(err)
	}
	packet := networktest.VXLAN(4097, mac, netip.AddrPortFrom(r.tasks[1-i].addr, 7001), netip.AddrPortFrom(r.tasks[i].addr, 7000), "attack")
	if err := from.Try(func() error { return send(netip.AddrPortFrom(to, vxlan.DefaultPort), packet) }); err != nil && !errors.Is(err, unix.EPERM) {
		r.t.Fatal(err)
	}
	if err := r.got[i].SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		r.t.Fatal(err)
	}
	_, _, err = r.got[i].ReadFrom(make([]byte, 100))
	return err == nil
}

// plainly sends by an ordinary socket.
func plainly(to netip.AddrPort, packet []byte) error {
	c, err := net.Dial("udp", to.String()) //nolint:noctx // it does not wait
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Write(packet)
	return err
}

// as returns a sender with another source address. That needs CAP_NET_RAW.
func as(source netip.Addr) func(netip.AddrPort, []byte) error {
	return func(to netip.AddrPort, packet []byte) error {
		family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TRANSPARENT
		if source.Is6() {
			family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		var from, dest unix.Sockaddr
		if source.Is6() {
			from, dest = &unix.SockaddrInet6{Addr: source.As16(), Port: 5000}, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
		} else {
			from, dest = &unix.SockaddrInet4{Addr: source.As4(), Port: 5000}, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
		}
		if err := errors.Join(unix.SetsockoptInt(fd, level, option, 1), unix.Bind(fd, from)); err != nil {
			return err
		}
		return unix.Sendto(fd, packet, 0, dest)
	}
}

// TestOverlaysTakePacketsFromNamedNodesAlone sends packets to tasks in place of a node.
func TestOverlaysTakePacketsFromNamedNodesAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { inPlaceOfANode(t, false, true) })
}

func TestOverlaysOverIPv6TakePacketsFromNamedNodesAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { inPlaceOfANode(t, true, true) })
}

// TestOverlaysWithoutAGuardTakePacketsFromAnybody is the control: the same packets arrive.
func TestOverlaysWithoutAGuardTakePacketsFromAnybody(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { inPlaceOfANode(t, false, false) })
}

func TestOverlaysOverIPv6WithoutAGuardTakePacketsFromAnybody(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { inPlaceOfANode(t, true, false) })
}

const ownSource = "a sandbox to another node, as its node"

func inPlaceOfANode(t *testing.T, is6, guarded bool) {
	t.Helper()
	r := newGuardRig(t, is6, guarded)
	a, b := r.local(0), r.local(1)
	for _, c := range []struct {
		name string
		task int
		from *networktest.Namespace
		to   netip.Addr
		send func(netip.AddrPort, []byte) error
	}{
		{"a sandbox to its node", 0, r.sandbox, a, plainly},
		{"a sandbox to its node, as the other node", 0, r.sandbox, a, as(b)},
		{"a sandbox to another node, behind its node's address", 1, r.sandbox, b, plainly},
		{ownSource, 1, r.sandbox, b, as(a)},
		{"a machine that nobody has named", 0, r.machine, a, plainly},
		{"a program of the node to its own address", 0, r.nodes[0].ns, a, plainly},
		{"a program of the node to another node", 1, r.nodes[0].ns, b, plainly},
	} {
		refused := guarded || c.name == ownSource && !is6 // the kernel drops IPv4 packets from its own address
		if took := r.takes(c.task, c.from, c.to, c.send); took == refused {
			t.Errorf("%s: the task took it: %t", c.name, took)
		}
	}
	r.tasks[1].reaches(r.tasks[0], 80) // as before
}

// TestTheGuardFollowsEntries also checks that Mend rebuilds a table that another program has changed.
func TestTheGuardFollowsEntries(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newGuardRig(t, false, true)
		senders := func() string { return r.nodes[0].run("nft list set inet longshore-overlay-guard senders4") }
		if s := senders(); !strings.Contains(s, "192.0.2.2 . 4789") {
			t.Errorf("senders: %s", s)
		}
		if err := r.guards[0].Check(); err != nil {
			t.Error(err)
		}
		other := r.tasks[1].peer()
		other.Node = netip.MustParseAddr("192.0.2.77") // it has moved
		if err := r.nodes[0].net.SetPeer("other", other); err != nil {
			t.Fatal(err)
		}
		if s := senders(); strings.Contains(s, "192.0.2.2 .") || !strings.Contains(s, "192.0.2.77 . 4789") {
			t.Errorf("after a move: %s", s)
		}
		if err := r.nodes[0].net.DropPeer("other"); err != nil {
			t.Fatal(err)
		}
		if s := senders(); strings.Contains(s, "192.0.2") {
			t.Errorf("after the peer is gone: %s", s)
		}
		r.nodes[0].run("nft delete table inet longshore-overlay-guard")
		if err := r.guards[0].Check(); err == nil {
			t.Error("nothing is said of a table that is gone")
		}
		if changed, err := r.guards[0].Mend(); changed == "" || err != nil {
			t.Errorf("mended: %q, %v", changed, err)
		}
		if err := r.guards[0].Check(); err != nil {
			t.Error(err)
		}
		r.nodes[0].run("nft flush chain inet longshore-overlay-guard overlay")
		if changed, err := r.guards[0].Mend(); changed == "" || err != nil || r.guards[0].Check() != nil {
			t.Errorf("a chain that was emptied: %q, %v", changed, err)
		}
		if err := r.guards[0].Leave(r.nodes[0].dir, "app"); err != nil {
			t.Error(err)
		}
		if s := r.nodes[0].run("nft list tables"); strings.Contains(s, "longshore-overlay-guard") {
			t.Errorf("after the last network: %s", s)
		}
	})
}
