package swarm

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// needIPVS skips a case without IPVS, dockerd's balancer.
func needIPVS(t *testing.T) {
	t.Helper()
	if !hasIPVS() {
		t.Skip("this kernel has no IPVS, or has not loaded it; make e2e-swarm-vm has one")
	}
}

// hasIPVS says whether dockerd can balance.
func hasIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// sandbox returns one of dockerd's balancing namespaces: ingress_sbox for published ports, or lb_ and
// the beginning of a network's id.
func (m *manager) sandbox(name string) *networktest.Namespace {
	m.t.Helper()
	pid, err := os.ReadFile(m.home + "/pid")
	if err != nil {
		m.t.Fatal(err)
	}
	// dockerd has mounted it in its own mount namespace.
	return &networktest.Namespace{Path: "/proc/" + strings.TrimSpace(string(pid)) + "/root" + m.home + "/exec/netns/" + name}
}

// balances returns the IPVS table of one of dockerd's namespaces.
func (m *manager) balances(sandbox string) (table string) {
	m.t.Helper()
	err := m.sandbox(sandbox).Try(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/ip_vs")
		table = string(text)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return table
}

// hexAddr is an address as the kernel's tables have it.
func hexAddr(a netip.Addr) string { return fmt.Sprintf("%X", a.AsSlice()) }

// forwards has the test's machine forward packets, as one with dockerd does.
func forwards(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDockerdsBalanceToOurs: by the address of a service, and by the port that it publishes, dockerd
// leads to a task on our data path.
func TestDockerdsBalanceToOurs(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		needIPVS(t)
		forwards(t)
		m, image := startRunner(t)
		m.docker("network", "create", "--driver", "overlay", "--attachable", "back")
		w := startPlainWorker(t, m)
		m.create("theirs", image, "--network", "back", "--constraint", "node.labels.runner==1", "--", "sleep", "100000")
		m.create("ours", image, "--network", "back", "--publish", "8081:80", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		task := w.task("ours")

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		dir, box := t.TempDir(), networktest.NewNamespace(t)
		g := startMember(t, link.NetNS())
		g.do(order{Op: "new", New: networkdb.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
		g.do(order{Op: "join", Join: []netip.AddrPort{netip.MustParseAddrPort(dockerd.ManagerIP + ":7946")}})
		var vip netip.Addr
		for i, on := range task.GetNetworks() {
			id, peer, endpoint := recordsOn(task, on, edgeIP)
			def := definitionOf(t, on.GetNetwork(), edgeIP)
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
			if on.GetNetwork().GetSpec().GetIngress() {
				if err := nft.Expose(openNS(t, box.Path), endpoint.Addr, []nft.Exposed{{Proto: unix.IPPROTO_TCP, Published: 8081, Target: 80}}); err != nil {
					t.Fatal(err)
				}
			} else {
				vip = endpoint.VIP
			}
			g.announce(id, peer, endpoint)
		}

		m.running("theirs", 1)
		inside := m.inside("theirs")
		roottest.Eventually(t, "dockerd's task reaches our service by its address", func() bool { return getIn(t, inside, vip) == large })
		roottest.Eventually(t, "a port of dockerd's machine leads to our task", func() bool { return get(t, "http://"+dockerd.ManagerIP+":8081/") == large })
		edge := &networktest.Namespace{Path: link.NetNS()}
		roottest.Eventually(t, "also for others", func() bool { return getAt(t, edge, netip.MustParseAddrPort(dockerd.ManagerIP+":8081")) == large })
		for _, on := range task.GetNetworks() {
			_, _, endpoint := recordsOn(task, on, edgeIP)
			sandbox := "lb_" + on.GetNetwork().GetId()[:9]
			if on.GetNetwork().GetSpec().GetIngress() {
				sandbox = "ingress_sbox"
			}
			if got := m.balances(sandbox); !strings.Contains(got, hexAddr(endpoint.Addr)+":") {
				t.Errorf("dockerd's IPVS in %s does not lead to %s:\n%s", sandbox, endpoint.Addr, got)
			}
		}
		m.docker("service", "rm", "theirs", "ours")
	})
}

// inside is the network namespace of the only container that dockerd has of a service, of those that
// were too slow to start none is left.
func (m *manager) inside(service string) *networktest.Namespace {
	m.t.Helper()
	var pid string
	roottest.Eventually(m.t, "dockerd has one container of "+service, func() bool {
		list := strings.Fields(m.docker("ps", "--quiet", "--filter", "label=com.docker.swarm.service.name="+service))
		if len(list) != 1 {
			return false
		}
		var err error
		pid, err = m.Docker(m.t.Context(), "inspect", "--format", "{{.State.Pid}}", list[0])
		return err == nil && pid != "0"
	})
	return &networktest.Namespace{Path: "/proc/" + pid + "/ns/net"}
}
