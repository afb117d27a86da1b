package swarm

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// overlayNetwork is what `docker network inspect -v` says.
type overlayNetwork struct {
	ID       string
	Peers    []struct{ Name, IP string }
	Services map[string]struct {
		VIP   string
		Tasks []struct{ Name, EndpointID, EndpointIP string }
	}
}

// startRunner starts a manager that runs tasks, with the image box.
func startRunner(t *testing.T) *manager {
	t.Helper()
	m := startManager(t)
	self := m.docker("info", "--format", "{{.Swarm.NodeID}}")
	m.docker("node", "update", "--availability", "active", "--label-add", "runner=1", self)
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	for _, dir := range []string{"bin", "etc", "proc", "tmp"} {
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755})
	}
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))})
	_, _ = w.Write(program)
	for _, name := range []string{"sh", "sleep", "ping", "wget", "httpd", "nslookup", "ip"} {
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	load := m.Command(t.Context(), "import", "-", "box")
	load.Stdin = &image
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v: %s", err, out)
	}
	return m
}

// network is a network as dockerd sees it.
func (m *manager) network(name string) (n overlayNetwork) {
	m.t.Helper()
	var list []overlayNetwork
	if err := json.Unmarshal([]byte(m.docker("network", "inspect", "--verbose", name)), &list); err != nil || len(list) != 1 {
		m.t.Fatalf("%v, %v", list, err)
	}
	return list[0]
}

// sees waits until dockerd has a task of a service at an address on a network, or none.
func (m *manager) sees(network, service, endpoint, addr string) {
	m.t.Helper()
	var last overlayNetwork
	defer func() {
		if m.t.Failed() {
			m.t.Logf("docker network inspect -v: %+v", last)
		}
	}()
	roottest.Eventually(m.t, fmt.Sprintf("dockerd has the task of %s at %q", service, addr), func() bool {
		last = m.network(network)
		tasks := last.Services[service].Tasks
		if addr == "" {
			return len(tasks) == 0
		}
		return len(tasks) == 1 && tasks[0].EndpointID == endpoint && tasks[0].EndpointIP == addr
	})
}

// recordsOf are what a node announces of a task on its only network.
func recordsOf(task *swarmv1.Task, tunnel string) (id gossip.ID, peer gossip.Peer, endpoint gossip.Endpoint) {
	on := task.GetNetworks()[0]
	addr := netip.MustParsePrefix(on.GetAddresses()[0])
	ip := addr.Addr().As4()
	id = gossip.ID{Network: on.GetNetwork().GetId(), Endpoint: gossip.EndpointID(task.GetId(), on.GetNetwork().GetId())}
	peer = gossip.Peer{Addr: addr, MAC: fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3]), Tunnel: netip.MustParseAddr(tunnel)}
	endpoint = gossip.Endpoint{
		Name: fmt.Sprintf("%s.%d.%s", task.GetServiceAnnotations().GetName(), task.GetSlot(), task.GetId()), Service: task.GetServiceAnnotations().GetName(),
		ServiceID: task.GetServiceId(), Addr: addr.Addr(), Aliases: on.GetAliases(), TaskAliases: []string{gossip.NodeName(task.GetId())},
	}
	for _, v := range task.GetEndpoint().GetVirtualIps() {
		if v.GetNetworkId() == id.Network {
			endpoint.VIP = netip.MustParsePrefix(v.GetAddr()).Addr()
		}
	}
	return id, peer, endpoint
}

// TestTheGossipOfDockerd: a member of ours joins the gossip of a dockerd by the Swarm's keys, learns
// of dockerd's task, and has dockerd learn of a task of ours, of its end, and of what a process of
// before has left when it was killed.
func TestTheGossipOfDockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		m := startRunner(t)
		m.docker("network", "create", "--driver", "overlay", "--attachable", "back")
		m.create("theirs", "box", "--network", "back", "--constraint", "node.labels.runner==1", "--", "sleep", "100000")
		m.running("theirs", 1)
		w := startPlainWorker(t, m)
		m.create("ours", "box", "--network", "back", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		id, peer, endpoint := recordsOf(w.task("ours"), edgeIP)

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		start := func() *member {
			g := startMember(t, link.NetNS())
			g.do(order{Op: "new", New: gossip.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
			g.do(order{Op: "join", Join: []netip.AddrPort{netip.MustParseAddrPort(dockerd.ManagerIP + ":7946")}})
			g.do(order{Op: "enter", Network: id.Network})
			g.do(order{Op: "watch", Network: id.Network})
			return g
		}
		g := start()
		if got := g.do(order{Op: "members"}).Members; len(got) != 1 || got[0].String() != dockerd.ManagerIP {
			t.Errorf("members %v", got)
		}
		knowsTheirs := func(g *member) {
			t.Helper()
			roottest.Eventually(t, "dockerd's task is known", func() bool {
				for _, e := range g.endpoints() {
					if e.Service == "theirs" && strings.HasPrefix(e.Name, "theirs.1.") && e.VIP.IsValid() && len(e.TaskAliases) > 0 {
						for _, p := range g.peers() {
							if p.Addr.Addr() == e.Addr && p.Tunnel.String() == dockerd.ManagerIP {
								return true
							}
						}
					}
				}
				return false
			})
		}
		knowsTheirs(g)
		g.announce(id, peer, endpoint)
		m.sees("back", "ours", id.Endpoint, endpoint.Addr.String())
		if n := m.network("back"); len(n.Peers) != 2 || n.Services["ours"].VIP != endpoint.VIP.String() {
			t.Errorf("%+v", n)
		}

		// Killed and started again: the record stays, and the next process takes it back.
		g.kill()
		g = start()
		knowsTheirs(g)
		g.announce(id, peer, endpoint)
		m.sees("back", "ours", id.Endpoint, endpoint.Addr.String())
		g.kill()
		g = start()
		g.withdraw(id, endpoint, peer)
		m.sees("back", "ours", "", "")
		g.announce(id, peer, endpoint)
		m.sees("back", "ours", id.Endpoint, endpoint.Addr.String())

		// Theirs ends.
		m.docker("service", "rm", "theirs")
		roottest.Eventually(t, "dockerd's task is gone", func() bool {
			for _, e := range g.endpoints() {
				if e.Service == "theirs" {
					return false
				}
			}
			return true
		})
		m.docker("service", "rm", "ours")
	})
}
