package swarm

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// needESP skips a case of encryption on a kernel without it.
func needESP(t *testing.T) {
	t.Helper()
	keys, err := vxlan.NewKeyring(nil)
	if err != nil {
		t.Fatal(err)
	}
	err = keys.Able()
	_ = keys.Close()
	if err != nil {
		t.Skipf("make e2e-swarm-vm has a kernel that can: %v", err)
	}
}

// wire counts the packets on a cable: those of ESP, also by the index of their association, and those
// of VXLAN in clear.
type wire struct {
	mu    sync.Mutex // guards count
	count map[string]int
}

// watch counts on a link of the test's own namespace until the end of the test.
func watch(t *testing.T, link string) *wire {
	t.Helper()
	dev, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	// All: a bridge's port shows its input to no socket of one protocol. In the network's order.
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
	if err != nil {
		t.Fatal(err)
	}
	// As a file, so that closing it ends the reader.
	f := os.NewFile(uintptr(fd), "wire")
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		t.Fatal(err)
	}
	w := &wire{count: map[string]int{}}
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			w.see(buf[:n])
		}
	})
	t.Cleanup(func() {
		_ = f.Close()
		reading.Wait()
	})
	return w
}

// see counts a packet.
func (w *wire) see(p []byte) {
	if len(p) < 20 || p[0]>>4 != 4 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch head := int(p[0]&15) * 4; {
	case p[9] == unix.IPPROTO_ESP && len(p) >= head+4:
		w.count["esp"]++
		w.count[fmt.Sprintf("spi %x", p[head:head+4])]++
	case p[9] == unix.IPPROTO_UDP && len(p) >= head+4 && binary.BigEndian.Uint16(p[head+2:]) == vxlan.DefaultPort:
		w.count["clear"]++
	}
}

// counts returns the packets since the last call.
func (w *wire) counts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := w.count
	w.count = map[string]int{}
	return count
}

// forge sends a packet of VXLAN in clear from a namespace to a node, as if a task sent a datagram to another's port 9.
func forge(t *testing.T, ns *networktest.Namespace, node netip.Addr, vni uint32, to netip.Addr, text string) {
	t.Helper()
	var c net.Conn
	ns.Do(t, func() (err error) {
		c, err = new(net.Dialer).DialContext(t.Context(), "udp4", netip.AddrPortFrom(node, 4789).String())
		return err
	})
	defer func() { _ = c.Close() }()
	mac, err := net.ParseMAC(vxlan.MACFor(to))
	if err != nil {
		t.Fatal(err)
	}
	from := to.As4()
	from[3] = 200
	p := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	p = append(append(p, mac...), 2, 0x42, 1, 2, 3, 4, 8, 0)
	ip := append([]byte{0x45, 0, 0, byte(28 + len(text)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(from[:], to.AsSlice()...)...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	p = append(append(p, ip...), 0, 9, 0, 9, 0, byte(8+len(text)), 0, 0)
	if _, err := c.Write(append(p, text...)); err != nil {
		t.Fatal(err)
	}
}

// hears listens in a namespace at port 9, and returns the packets that arrive.
func hears(t *testing.T, ns *networktest.Namespace) <-chan string {
	t.Helper()
	var c net.PacketConn
	ns.Do(t, func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "0.0.0.0:9")
		return err
	})
	heard := make(chan string, 1000)
	go func() {
		buf := make([]byte, 100)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { _ = c.Close() })
	return heard
}

// deaf fails when a task hears a third machine's packet in clear on an encrypted network; it hears the
// same on one that is not.
func deaf(t *testing.T, ns, third *networktest.Namespace, node netip.Addr, sealed, plain map[uint32]netip.Addr) {
	t.Helper()
	heard := hears(t, ns)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	deadline := time.NewTimer(roottest.Patience())
	defer deadline.Stop()
	for n := 0; n < 10; {
		for vni, addr := range sealed {
			forge(t, third, node, vni, addr, "sealed")
		}
		for vni, addr := range plain {
			forge(t, third, node, vni, addr, "plain")
		}
		select {
		case got := <-heard:
			if got != "plain" {
				t.Fatalf("a task at %s takes a packet in clear on an encrypted network", node)
			}
			n++
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("a task at %s hears nothing on a network that is not encrypted", node)
		}
	}
}

// TestEncryptedBesideDockerds: a task on our data path and one of dockerd's reach each other on an
// encrypted network with packets that fill their interfaces; the wire between the machines has ESP
// alone, and neither accepts packets in clear.
func TestEncryptedBesideDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		needESP(t)
		m, image := startRunner(t)
		m.docker("network", "create", "--driver", "overlay", "--opt", "encrypted", "sealed")
		m.docker("network", "create", "--driver", "overlay", "plain")
		w := startPlainWorker(t, m)
		m.create("theirs", image, "--network", "sealed", "--network", "plain", "--constraint", "node.labels.runner==1", "--", "sh", "-c", "i=0; while [ $i -lt 16384 ]; do echo -n 0123456789abcdef; i=$((i+1)); done >/tmp/index.html; exec httpd -f -p 80 -h /tmp")
		m.create("ours", image, "--network", "sealed", "--network", "plain", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		task := w.task("ours")

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		dir, box := t.TempDir(), networktest.NewNamespace(t)
		g := startMember(t, link.NetNS())
		g.do(order{Op: "new", New: networkdb.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
		g.do(order{Op: "keys", Keys: w.sealKeys()})
		g.do(order{Op: "join", Join: []netip.AddrPort{netip.MustParseAddrPort(dockerd.ManagerIP + ":7946")}})
		own, vnis := map[string]netip.Addr{}, map[string]uint32{}
		for i, on := range task.GetNetworks() {
			id, peer, endpoint := recordsOn(task, on, edgeIP)
			def := definitionOf(t, on.GetNetwork(), edgeIP)
			name := on.GetNetwork().GetSpec().GetAnnotations().GetName()
			own[name], vnis[name] = endpoint.Addr, def.Subnets[0].VNI
			t.Cleanup(func() {
				if err := vxlan.Remove(dir, def.Name); err != nil {
					t.Error(err)
				}
			})
			g.do(order{Op: "open", Dir: dir, Open: def})
			g.do(order{Op: "enter", Network: id.Network})
			g.do(order{Op: "watch", Network: id.Network})
			g.do(order{Op: "attach", Network: id.Network, Path: box.Path, Attach: vxlan.Attachment{Key: id.Endpoint, Interface: fmt.Sprint("eth", i), Addrs: []netip.Prefix{peer.Addr}, MAC: peer.MAC}})
			serveIn(t, box, endpoint.Addr)
			g.announce(id, peer, endpoint)
		}

		m.running("theirs", 1)
		inside := m.inside("theirs")
		theirs := map[string]netip.Addr{}
		roottest.Eventually(t, "dockerd's task is known on both networks", func() bool {
			for _, on := range task.GetNetworks() {
				for _, e := range g.endpoints() {
					if e.Service == "theirs" && definitionOf(t, on.GetNetwork(), edgeIP).Subnets[0].Range.Contains(e.Addr) {
						theirs[on.GetNetwork().GetSpec().GetAnnotations().GetName()] = e.Addr
					}
				}
			}
			return len(theirs) == 2
		})
		seen := watch(t, "to-edge0")
		reach := func(network string) {
			t.Helper()
			roottest.Eventually(t, "our task reaches dockerd's, "+network, func() bool { return getIn(t, box, theirs[network]) == large })
			roottest.Eventually(t, "dockerd's task reaches ours, "+network, func() bool { return getIn(t, inside, own[network]) == large })
		}
		reach("sealed")
		if got := seen.counts(); got["clear"] > 0 || got["esp"] < 2*len(large)/1500 {
			t.Errorf("on the wire were %v", got)
		} else {
			t.Logf("on the wire were %v", got)
		}
		reach("plain")
		roottest.Eventually(t, "what is not encrypted is seen on the wire", func() bool { return seen.counts()["clear"] > 0 })

		one := func(network string, a netip.Addr) map[uint32]netip.Addr {
			return map[uint32]netip.Addr{vnis[network]: a}
		}
		third := &networktest.Namespace{Path: nodetest.Plug(t, "swarm0", "third", "10.99.0.66/24").NetNS()}
		deaf(t, box, third, netip.MustParseAddr(edgeIP), one("sealed", own["sealed"]), one("plain", own["plain"]))
		deaf(t, inside, third, netip.MustParseAddr(dockerd.ManagerIP), one("sealed", theirs["sealed"]), one("plain", theirs["plain"]))
		m.docker("service", "rm", "theirs", "ours")
	})
}
