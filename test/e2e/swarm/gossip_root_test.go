package swarm

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// overlayNetwork is the output of `docker network inspect -v`.
type overlayNetwork struct {
	ID       string
	Peers    []struct{ Name, IP string }
	Services map[string]struct {
		VIP   string
		Tasks []struct{ Name, EndpointID, EndpointIP string }
	}
}

// startRunner starts a manager that runs tasks, with an image. By its id dockerd does not look for
// it in a registry.
func startRunner(t *testing.T) (m *manager, box string) {
	t.Helper()
	m = startManager(t)
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
	load := m.Command(t.Context(), "import", "-")
	load.Stdin = &image
	out, err := load.CombinedOutput()
	if err != nil {
		t.Fatalf("docker import: %v: %s", err, out)
	}
	return m, strings.TrimSpace(string(out))
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

// recordsOf returns a node's announcements of a task on its first network.
func recordsOf(task *swarmv1.Task, tunnel string) (id gossip.ID, peer gossip.Peer, endpoint gossip.Endpoint) {
	return recordsOn(task, task.GetNetworks()[0], tunnel)
}

// recordsOn returns a node's announcements of a task on one of its networks.
func recordsOn(task *swarmv1.Task, on *swarmv1.NetworkAttachment, tunnel string) (id gossip.ID, peer gossip.Peer, endpoint gossip.Endpoint) {
	addr := netip.MustParsePrefix(on.GetAddresses()[0])
	ip := addr.Addr().As4()
	id = gossip.ID{Network: on.GetNetwork().GetId(), Endpoint: gossip.EndpointID(task.GetId(), on.GetNetwork().GetId())}
	peer = gossip.Peer{Addr: addr, MAC: fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3]), Tunnel: netip.MustParseAddr(tunnel)}
	endpoint = gossip.Endpoint{
		Name: fmt.Sprintf("%s.%d.%s", task.GetServiceAnnotations().GetName(), task.GetSlot(), task.GetId()), Service: task.GetServiceAnnotations().GetName(),
		ServiceID: task.GetServiceId(), Addr: addr.Addr(), Aliases: on.GetAliases(), TaskAliases: []string{gossip.NodeName(task.GetId())},
	}
	for _, p := range task.GetEndpoint().GetPorts() {
		if on.GetNetwork().GetSpec().GetIngress() {
			endpoint.Ports = append(endpoint.Ports, gossip.Port{Proto: strings.ToLower(p.GetProtocol().String()), Target: uint16(p.GetTargetPort()), Published: uint16(p.GetPublishedPort())})
		}
	}
	for _, v := range task.GetEndpoint().GetVirtualIps() {
		if v.GetNetworkId() == id.Network {
			endpoint.VIP = netip.MustParsePrefix(v.GetAddr()).Addr()
		}
	}
	return id, peer, endpoint
}

// TestTheGossipOfDockerd: a member of ours joins the gossip of a dockerd by the Swarm's keys, and
// learns of dockerd's task. dockerd learns of a task of ours, and of its end, also when an earlier
// process announced it and was killed.
func TestTheGossipOfDockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		m, image := startRunner(t)
		m.docker("network", "create", "--driver", "overlay", "--attachable", "back")
		m.create("theirs", image, "--network", "back", "--constraint", "node.labels.runner==1", "--", "sleep", "100000")
		m.running("theirs", 1)
		w := startPlainWorker(t, m)
		m.create("ours", image, "--network", "back", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		id, peer, endpoint := recordsOf(w.task("ours"), edgeIP)

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		start := func() *member {
			g := startMember(t, link.NetNS())
			g.do(order{Op: "new", New: networkdb.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
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

// definitionOf is a network as a node with an address has it.
func definitionOf(t *testing.T, n *swarmv1.Network, local string) vxlan.Definition {
	t.Helper()
	d := vxlan.Definition{Name: n.GetId(), MTU: 1450, Local: netip.MustParseAddr(local)}
	options := n.GetDriverState().GetOptions()
	if _, d.Encrypted = options["encrypted"]; d.Encrypted {
		d.MTU = 1424
	}
	ids := strings.Split(options["com.docker.network.driver.overlay.vxlanid_list"], ",")
	for i, c := range n.GetIpam().GetConfigs() {
		id, err := strconv.ParseUint(ids[i], 10, 24)
		if err != nil {
			t.Fatal(err)
		}
		d.Subnets = append(d.Subnets, vxlan.Subnet{Range: netip.MustParsePrefix(c.GetSubnet()), Gateway: netip.MustParseAddr(c.GetGateway()), VNI: uint32(id)})
	}
	return d
}

// large is the content that both sides serve: many packets that fill their interfaces.
var large = strings.Repeat("0123456789abcdef", 1<<14)

// TestATaskBesideDockerds: a task on our data path and one of dockerd's reach each other by address,
// ours reaches dockerd's service, and dockerd's task finds ours by name; also while our process is dead, and after the next one has
// adopted the data path.
func TestATaskBesideDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		m, image := startRunner(t)
		m.docker("network", "create", "--driver", "overlay", "--attachable", "back")
		m.create("theirs", image, "--network", "back", "--constraint", "node.labels.runner==1", "--", "sh", "-c", "i=0; while [ $i -lt 16384 ]; do echo -n 0123456789abcdef; i=$((i+1)); done >/tmp/index.html; exec httpd -f -p 80 -h /tmp")
		m.running("theirs", 1)
		inside := m.inside("theirs")
		w := startPlainWorker(t, m)
		m.create("ours", image, "--network", "back", "--constraint", "node.labels.runner!=1", "--", "sleep", "100000")
		task := w.task("ours")
		id, peer, endpoint := recordsOf(task, edgeIP)

		link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
		dir := t.TempDir()
		def := definitionOf(t, task.GetNetworks()[0].GetNetwork(), edgeIP)
		t.Cleanup(func() {
			if err := vxlan.Remove(dir, def.Name); err != nil {
				t.Error(err)
			}
		})
		start := func() *member {
			g := startMember(t, link.NetNS())
			g.do(order{Op: "new", New: networkdb.Options{Name: gossip.NodeName(w.id.NodeID), Advertise: netip.MustParseAddr(edgeIP), Keys: w.keyring()}})
			g.do(order{Op: "open", Dir: dir, Open: def})
			g.do(order{Op: "join", Join: []netip.AddrPort{netip.MustParseAddrPort(dockerd.ManagerIP + ":7946")}})
			g.do(order{Op: "enter", Network: id.Network})
			g.do(order{Op: "watch", Network: id.Network})
			return g
		}
		box := networktest.NewNamespace(t)
		g := start()
		g.do(order{Op: "attach", Path: box.Path, Attach: vxlan.Attachment{Key: id.Endpoint, Interface: "eth0", Addrs: []netip.Prefix{peer.Addr}, MAC: peer.MAC}})
		serveIn(t, box, endpoint.Addr)
		g.announce(id, peer, endpoint)

		var theirs gossip.Endpoint
		roottest.Eventually(t, "dockerd's task is known", func() bool {
			for _, e := range g.endpoints() {
				if e.Service == "theirs" {
					theirs = e
				}
			}
			return theirs.Addr.IsValid() && len(g.peers()) >= 1
		})
		reach := func(when string) {
			t.Helper()
			roottest.Eventually(t, when+": our task reaches dockerd's", func() bool { return getIn(t, box, theirs.Addr) == large })
			roottest.Eventually(t, when+": our task reaches dockerd's service", func() bool { return getIn(t, box, theirs.VIP) == large })
			roottest.Eventually(t, when+": dockerd's task reaches ours", func() bool { return getIn(t, inside, endpoint.Addr) == large })
			for _, name := range []string{"tasks.ours", endpoint.Name} {
				roottest.Eventually(t, when+": dockerd's task finds ours as "+name, func() bool {
					got, err := lookUpIn(t, inside, name)
					return err == nil && len(got) == 1 && got[0] == endpoint.Addr
				})
			}
		}
		// dockerd's service answers at its own address, too, by rules in our task's namespace.
		f, err := os.Open(box.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if err := nft.NewBalancer(nft.BalancerOptions{}).Set(f, []nft.Service{{Addr: theirs.VIP, Backends: []nft.Backend{{Addr: theirs.Addr}}}}); err != nil {
			t.Fatal(err)
		}
		reach("at first")
		// The process dies, and the next one adopts its devices.
		devices := func() string {
			t.Helper()
			var all strings.Builder
			for _, args := range []string{"ip -o link", "bridge fdb show brport vx0", "ip neigh show nud permanent"} {
				out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + filepath.Join(dir, def.Name)}, strings.Fields(args)...)...).CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v: %s", args, err, out)
				}
				for line := range strings.Lines(string(out)) {
					// Entries that the device learned from packets come and go.
					if !strings.Contains(line, " dst ") || strings.Contains(line, " permanent") {
						all.WriteString(line)
					}
				}
			}
			return all.String()
		}
		before := devices()
		g.kill()
		if after := devices(); after != before || !strings.Contains(before, " dst "+dockerd.ManagerIP) {
			t.Errorf("the data path was\n%s\nand is without our process\n%s", before, after)
		}
		g = start()
		g.announce(id, peer, endpoint)
		roottest.Eventually(t, "dockerd's task is known again", func() bool {
			return slices.ContainsFunc(g.peers(), func(p gossip.Peer) bool { return p.Addr.Addr() == theirs.Addr })
		})
		g.do(order{Op: "prune"})
		if after := devices(); !strings.Contains(after, theirs.Addr.String()+" ") || strings.Count(after, "\n") < strings.Count(before, "\n") {
			t.Errorf("the data path was\n%s\nand is with our next process\n%s", before, after)
		}
		reach("after the next process has adopted it")
		if n := m.network("back"); len(n.Services["ours"].Tasks) != 1 {
			t.Errorf("%+v", n)
		}
		m.docker("service", "rm", "theirs", "ours")
	})
}

// serveIn answers HTTP in a namespace.
func serveIn(t *testing.T, ns *networktest.Namespace, addr netip.Addr) {
	t.Helper()
	ns.Do(t, func() error {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", netip.AddrPortFrom(addr, 80).String())
		if err != nil {
			return err
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) }), ReadHeaderTimeout: roottest.Patience()}
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.Serve(l) }()
		return nil
	})
}

// getIn asks a server from inside of a namespace, "" when it does not answer.
func getIn(t *testing.T, ns *networktest.Namespace, addr netip.Addr) string {
	t.Helper()
	return getAt(t, ns, netip.AddrPortFrom(addr, 80))
}

// getAt is getIn at another port.
func getAt(t *testing.T, ns *networktest.Namespace, at netip.AddrPort) string {
	t.Helper()
	var c net.Conn
	err := ns.Try(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.DialContext(t.Context(), "tcp4", at.String())
		return err
	})
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return ""
	}
	all, _ := io.ReadAll(c)
	_, body, _ := strings.Cut(string(all), "\r\n\r\n")
	return body
}

// lookUpIn asks the name server that a namespace has for a name's addresses.
func lookUpIn(t *testing.T, ns *networktest.Namespace, name string) ([]netip.Addr, error) {
	t.Helper()
	r := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = ns.Try(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, "127.0.0.11:53")
			return err
		})
		return c, err
	}}
	return r.LookupNetIP(t.Context(), "ip4", name+".")
}
