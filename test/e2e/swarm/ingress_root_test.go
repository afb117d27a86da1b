package swarm

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/directory"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// attachment waits for the node's own address on the network of published ports.
func (w *plainWorker) attachment() (a *swarmv1.NetworkAttachment) {
	w.t.Helper()
	roottest.Eventually(w.t, "the manager gives the node an address for published ports", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, on := range w.node.GetAttachments() {
			if on.GetNetwork().GetSpec().GetIngress() && len(on.GetAddresses()) > 0 {
				a = on
			}
		}
		return a != nil
	})
	return a
}

// openNS opens a namespace until the end of the test.
func openNS(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestPublishedPortsBesideDockerds: ports that services publish answer at our node, for tasks of
// dockerd's and of ours: from a port of the node through a namespace that has the node's address on
// the network of published ports, by rules made from the gossip.
func TestPublishedPortsBesideDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		m, image := startRunner(t)
		w := startPlainWorker(t, m)
		m.create("theirs", image, "--publish", "8080:80", "--constraint", "node.labels.runner==1", "--", "sh", "-c", "echo -n of dockerd >/tmp/index.html; exec httpd -f -p 80 -h /tmp")
		m.create("ours", image, "--publish", "8081:80", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		m.running("theirs", 1)
		id, peer, endpoint := recordsOf(w.task("ours"), edgeIP)
		own := w.attachment()
		if own.GetNetwork().GetId() != id.Network || len(endpoint.Ports) != 1 {
			t.Fatalf("attachment %v, endpoint %+v", own, endpoint)
		}
		ownAddr := netip.MustParsePrefix(own.GetAddresses()[0])
		ownID := gossip.ID{Network: id.Network, Endpoint: gossip.EndpointID(w.id.NodeID, id.Network)}

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		edge := &networktest.Namespace{Path: link.NetNS()}
		dir, def := t.TempDir(), definitionOf(t, own.GetNetwork(), edgeIP)
		t.Cleanup(func() {
			if err := vxlan.Remove(dir, def.Name); err != nil {
				t.Error(err)
			}
		})
		g := startMember(t, link.NetNS())
		g.do(order{Op: "new", New: networkdb.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
		g.do(order{Op: "open", Dir: dir, Open: def})
		g.do(order{Op: "join", Join: []netip.AddrPort{netip.MustParseAddrPort(dockerd.ManagerIP + ":7946")}})
		g.do(order{Op: "enter", Network: id.Network})
		g.do(order{Op: "watch", Network: id.Network})

		// The node's own interface on the network, in a namespace that a port of the node leads to.
		mesh := networktest.NewNamespace(t)
		g.do(order{Op: "attach", Path: mesh.Path, Attach: vxlan.Attachment{Key: ownID.Endpoint, Interface: "eth0", Addrs: []netip.Prefix{ownAddr}}})
		nodetest.Lines(t, "nsenter", strings.Fields("--net="+edge.Path+" ip link add mesh type veth peer name host netns "+mesh.Path)...)
		for _, line := range []string{edge.Path + " ip addr add 172.31.0.1/30 dev mesh", edge.Path + " ip link set mesh up", mesh.Path + " ip addr add 172.31.0.2/30 dev host", mesh.Path + " ip link set host up", mesh.Path + " ip route add default via 172.31.0.1"} {
			nodetest.Lines(t, "nsenter", strings.Fields("--net="+line)...)
		}
		for _, ns := range []*networktest.Namespace{edge, mesh} {
			ns.Do(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) })
		}
		g.announce(ownID, gossip.Peer{Addr: ownAddr, MAC: vxlan.MACFor(ownAddr.Addr()), Tunnel: netip.MustParseAddr(edgeIP)})

		// Our task.
		box := networktest.NewNamespace(t)
		g.do(order{Op: "attach", Path: box.Path, Attach: vxlan.Attachment{Key: id.Endpoint, Interface: "eth0", Addrs: []netip.Prefix{peer.Addr}, MAC: peer.MAC}})
		serveIn(t, box, endpoint.Addr)
		if err := nft.Expose(openNS(t, box.Path), endpoint.Addr, []nft.Exposed{{Proto: unix.IPPROTO_TCP, Published: endpoint.Ports[0].Published, Target: endpoint.Ports[0].Target}}); err != nil {
			t.Fatal(err)
		}
		g.announce(id, peer, endpoint)

		// Endpoints of the gossip become rules.
		inMesh, onHost := nft.NewBalancer(nft.BalancerOptions{Source: ownAddr.Addr(), Ports: true}), nft.NewBalancer(nft.BalancerOptions{Ports: true})
		meshNS, edgeNS := openNS(t, mesh.Path), openNS(t, edge.Path)
		var last map[directory.Port][]directory.Backend
		roottest.Eventually(t, "the port of dockerd's task is known", func() bool {
			d := directory.New(directory.Network{Ranges: []netip.Prefix{def.Subnets[0].Range}, Gateways: []netip.Addr{def.Subnets[0].Gateway}})
			for i, e := range append(g.endpoints(), endpoint) {
				if err := d.Put(fmt.Sprint(i), e); err != nil {
					t.Error(err)
				}
			}
			last = d.Ports()
			return len(last) == 2
		})
		var inside, outside []nft.Service
		for port, backends := range last {
			s := nft.Service{Proto: unix.IPPROTO_TCP, Port: port.Number}
			outside = append(outside, nft.Service{Proto: s.Proto, Port: s.Port, Backends: []nft.Backend{{Addr: netip.MustParseAddr("172.31.0.2")}}})
			for _, b := range backends {
				s.Backends = append(s.Backends, nft.Backend{Addr: b.Addr, Draining: b.Draining})
			}
			inside = append(inside, s)
		}
		if err := inMesh.Set(meshNS, inside); err != nil {
			t.Fatal(err)
		}
		if err := onHost.Set(edgeNS, outside); err != nil {
			t.Fatal(err)
		}
		for port, want := range map[int]string{8080: "of dockerd", 8081: large} {
			roottest.Eventually(t, fmt.Sprintf("port %d answers at our node", port), func() bool {
				return get(t, fmt.Sprintf("http://%s:%d/", edgeIP, port)) == want
			})
		}
		m.docker("service", "rm", "theirs", "ours")
	})
}
