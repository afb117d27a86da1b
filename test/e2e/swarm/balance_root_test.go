package swarm

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/overlay"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// needIPVS skips a case in which dockerd balances: it does that by IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skipf("this kernel has no IPVS, or has not loaded it; make e2e-swarm-vm has one: %v", err)
	}
}

// balances is what dockerd's IPVS leads to in one of its namespaces: that of published ports,
// ingress_sbox, or that of a network, lb_ and the beginning of its id.
func (m *manager) balances(sandbox string) string {
	m.t.Helper()
	pid, err := os.ReadFile(m.home + "/pid")
	if err != nil {
		m.t.Fatal(err)
	}
	// dockerd has mounted it in its own mount namespace.
	out, err := exec.CommandContext(m.t.Context(), "nsenter", "--mount", "--target", strings.TrimSpace(string(pid)), "nsenter", "--net="+m.home+"/exec/netns/"+sandbox, "cat", "/proc/net/ip_vs").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
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
				if err := overlay.Remove(dir, def.Name); err != nil {
					t.Error(err)
				}
			})
			g.do(order{Op: "open", Dir: dir, Open: def})
			g.do(order{Op: "enter", Network: id.Network})
			g.do(order{Op: "watch", Network: id.Network})
			g.do(order{Op: "attach", Network: id.Network, Path: box.Path, Attach: overlay.Attachment{Key: id.Endpoint, Interface: fmt.Sprint("eth", i), Addrs: []netip.Prefix{peer.Addr}, MAC: peer.MAC}})
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

// inside is the network namespace of the only container that dockerd has of a service.
func (m *manager) inside(service string) *networktest.Namespace {
	m.t.Helper()
	pid := m.docker("inspect", "--format", "{{.State.Pid}}", m.docker("ps", "--quiet", "--filter", "label=com.docker.swarm.service.name="+service))
	return &networktest.Namespace{Path: "/proc/" + pid + "/ns/net"}
}
