package attack

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// The addresses of a Swarm under attack: its manager, two nodes, the second with CNI plugins, and a machine outside of
// the Swarm.
const (
	swarmManager = "10.98.0.1"
	swarmFirst   = "10.98.0.2"
	swarmSecond  = "10.98.0.3"
	swarmOther   = "10.98.0.9"
)

// overlayAttempts send to a node's ports for overlay networks from containers and from another machine.
func overlayAttempts() []attempt {
	var all []attempt
	add := func(name string, a actor, run func(t *testing.T, s *swarmWorld) result) {
		all = append(all, attempt{name: "swarm: " + name, actor: a, weak: weaken.OverlaySenders, run: func(t *testing.T, w *world) result {
			return run(t, w.ofSwarm(t))
		}})
	}
	for _, from := range []string{"bridged", "named", "cni"} {
		add("send to a task through the container's own node, "+from, containerRoot, func(t *testing.T, s *swarmWorld) result {
			n := s.nodeOf(from)
			return s.sent(t, n, s.inside(t, from, "overlay-send", n.addr, s.packet(n)))
		})
		add("send to a task through another node, "+from, containerRoot, func(t *testing.T, s *swarmWorld) result {
			n := s.otherThan(s.nodeOf(from))
			return s.sent(t, n, s.inside(t, from, "overlay-send", n.addr, s.packet(n)))
		})
		add("send to a task as another node, "+from, withoutAdmin, func(t *testing.T, s *swarmWorld) result {
			n := s.nodeOf(from)
			return s.sent(t, n, s.inside(t, from+"-raw", "overlay-send", n.addr, s.packet(n), s.otherThan(n).addr))
		})
		add("reach the gossip, "+from, containerRoot, func(t *testing.T, s *swarmWorld) result {
			return s.inside(t, from, "gossip-dial", s.nodeOf(from).addr)
		})
	}
	add("send to a task of another node from the host's network", containerRoot, func(t *testing.T, s *swarmWorld) result {
		n := s.otherThan(s.nodeOf("host"))
		return s.sent(t, n, s.inside(t, "host", "overlay-send", n.addr, s.packet(n)))
	})
	for i, of := range []string{"a node", "a node that uses CNI plugins"} {
		add("send to a task of "+of+" from another machine", networkClient, func(t *testing.T, s *swarmWorld) result {
			n := s.nodes[i]
			return s.sent(t, n, s.stranger(t, "overlay-send", n.addr, s.packet(n)))
		})
	}
	return all
}

// overlayProbes run in containers and on other machines.
func overlayProbes() []probe {
	return []probe{{name: "overlay-send", run: sendOverlay}, {name: "gossip-dial", run: dialGossip}}
}

// sendOverlay sends a packet to a node's data path. An optional third argument is its source.
func sendOverlay(args []string) result {
	packet, err := hex.DecodeString(args[1])
	if err != nil {
		return is(unmade, "%v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if len(args) > 2 {
		source := netip.MustParseAddr(args[2]).As4()
		if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: source, Port: 5000})); err != nil {
			return is(unmade, "send as %s: %v", args[2], err)
		}
	}
	err = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(args[0]).As4(), Port: vxlan.DefaultPort})
	if err != nil && !errors.Is(err, unix.EPERM) { // the error of a drop at the output
		return is(unmade, "send: %v", err)
	}
	return is(bounded, "send to %s: %v", args[0], err)
}

// dialGossip connects to a node's port of the gossip.
func dialGossip(args []string) result {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(args[0], strconv.Itoa(gossip.DefaultPort)), 2*time.Second) //nolint:noctx // it ends in time
	if err != nil {
		return is(refused, "%v", err)
	}
	_ = c.Close()
	return is(reached, "connected to %s", c.RemoteAddr())
}

// swarmWorld is a Swarm with an overlay network and one task on each node.
type swarmWorld struct {
	w     *world
	ref   string
	nodes []*swarmNode
}

type swarmNode struct {
	*nodetest.Node
	addr string
	task netip.Addr
	name string // of its task
	pid  int    // of the task's process

	before int // packets to closed ports, so far
}

// ofSwarm returns the world's Swarm. The first attempt makes it.
func (w *world) ofSwarm(t *testing.T) *swarmWorld {
	t.Helper()
	if w.swarm == nil {
		w.swarm = newSwarmWorld(w.t, w)
	}
	return w.swarm
}

func newSwarmWorld(t *testing.T, w *world) *swarmWorld {
	t.Helper()
	s := &swarmWorld{w: w}
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	nodetest.Bridge(t, "swarm0", swarmManager+"/24")
	nodetest.Plug(t, "swarm0", "other", swarmOther+"/24")
	manager := swarmtest.NewAt(t, swarmManager+":0")
	manager.Period = 500 * time.Millisecond
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", swarmManager+":0")
	if err != nil {
		t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	s.ref = registry.Push("busybox", "latest", built)
	certs := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(certs, registry.Host), 0o755), os.WriteFile(filepath.Join(certs, registry.Host, "hosts.toml"), []byte("server = \"http://"+registry.Host+"\"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	meeting(t)
	manager.Say(swarmtest.Keys)
	for i, addr := range []string{swarmFirst, swarmSecond} {
		link := nodetest.Plug(t, "swarm0", fmt.Sprintf("node%d", i), addr+"/24")
		o := nodetest.Options{NetNS: link.NetNS(), Bin: w.bin, Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", certs)}
		if i == 1 {
			o.Config += "[network]\nmode = \"cni\"\n[network.cni]\nconf_dir = \"" + cniNetwork(t) + "\"\n"
		}
		if w.weak != "" {
			o.Env = []string{weaken.Env + "=" + string(w.weak)}
		}
		n := &swarmNode{Node: nodetest.Start(t, o), addr: addr, task: netip.AddrFrom4([4]byte{10, 0, 1, byte(11 + i)}), name: fmt.Sprintf("task%d", i)}
		s.must(t, n, "swarm", "join", manager.Addr, "--token", manager.Token)
		var st struct{ Node string }
		if err := json.Unmarshal([]byte(s.must(t, n, "swarm", "status", "--json")), &st); err != nil {
			t.Fatal(err)
		}
		task := swarmtest.Task(n.name, s.ref, "sh", "-c", "exec sleep 100000")
		task.NodeId = st.Node
		task.Networks = []*swarmv1.NetworkAttachment{swarmtest.Overlay("back", 1, 11+i)}
		manager.Assign(task)
		manager.Reaches(n.name, swarmv1.TaskState_RUNNING)
		var list []struct {
			Key string
			Pid int
		}
		if err := json.Unmarshal([]byte(s.must(t, n, "ps", "--json")), &list); err != nil || len(list) != 1 || list[0].Pid == 0 {
			t.Fatalf("tasks: %v, %v", list, err)
		}
		n.pid = list[0].Pid
		s.nodes = append(s.nodes, n)
	}
	for i, n := range s.nodes {
		other := s.nodes[1-i]
		roottest.Eventually(t, "the tasks reach each other", func() bool {
			return exec.CommandContext(t.Context(), "nsenter", "--net=/proc/"+strconv.Itoa(n.pid)+"/ns/net", "busybox", "ping", "-c", "1", "-W", "1", other.task.String()).Run() == nil
		})
	}
	mount := w.self + ":/attacker:ro"
	a, b := s.nodes[0], s.nodes[1]
	s.must(t, a, "network", "create", "mine")
	for name, flags := range map[string][]string{"bridged": nil, "named": {"--network", "mine"}, "host": {"--network", "host"}} {
		s.must(t, a, append(append([]string{"run", "-d", "--name", name, "-v", mount}, flags...), s.ref, "sleep", "100000")...)
		s.must(t, a, append(append([]string{"run", "-d", "--name", name + "-raw", "--cap-add", "NET_RAW", "--cap-add", "NET_ADMIN", "-v", mount}, flags...), s.ref, "sleep", "100000")...)
	}
	s.must(t, b, "run", "-d", "--name", "cni", "-v", mount, s.ref, "sleep", "100000")
	s.must(t, b, "run", "-d", "--name", "cni-raw", "--cap-add", "NET_RAW", "--cap-add", "NET_ADMIN", "-v", mount, s.ref, "sleep", "100000")
	return s
}

// meeting starts a member of the gossip at the manager's address. The nodes find each other through it.
func meeting(t *testing.T) {
	t.Helper()
	msg := &swarmv1.SessionMessage{}
	swarmtest.Keys(msg)
	var timed []gossip.TimedKey
	for _, k := range msg.GetNetworkBootstrapKeys() {
		if k.GetSubsystem() == "networking:gossip" {
			timed = append(timed, gossip.TimedKey{Key: k.GetKey(), Time: k.GetLamportTime()})
		}
	}
	keys, err := gossip.Keyring(timed)
	if err != nil {
		t.Fatal(err)
	}
	m, err := networkdb.Factory{}.New("meeting", netip.MustParseAddr(swarmManager), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Leave)
}

// cniNetwork returns a directory with the configuration of a network of Debian's plugins.
func cniNetwork(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/lib/cni/bridge"); err != nil {
		t.Skipf("no CNI plugins here: %v", err)
	}
	dir := t.TempDir()
	text := `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "bridge": "cni7", "isGateway": true, "ipMasq": true,
"ipam": {"type": "host-local", "dataDir": "` + t.TempDir() + `", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "lan.conflist"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *swarmWorld) must(t *testing.T, n *swarmNode, args ...string) string {
	t.Helper()
	out, err := n.CLI(args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s\n%s", args, err, out, n.LogTail(4000))
	}
	return out
}

// nodeOf returns the node of an attacker's container.
func (s *swarmWorld) nodeOf(from string) *swarmNode {
	if strings.HasPrefix(from, "cni") {
		return s.nodes[1]
	}
	return s.nodes[0]
}

func (s *swarmWorld) otherThan(n *swarmNode) *swarmNode {
	if n == s.nodes[0] {
		return s.nodes[1]
	}
	return s.nodes[0]
}

// inside runs a probe in an attacker's container.
func (s *swarmWorld) inside(t *testing.T, from string, args ...string) result {
	t.Helper()
	out, err := s.nodeOf(from).CLI(append([]string{"exec", from, "/attacker", probeArg}, args...)...)
	if err != nil {
		return is(unmade, "%v: %s", err, out)
	}
	return decode([]byte(out))
}

// stranger runs a probe on the machine outside of the Swarm.
func (s *swarmWorld) stranger(t *testing.T, args ...string) result {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", "other", s.w.self, probeArg}, args...)...).Output()
	if err != nil {
		return is(unmade, "%v: %s", err, out)
	}
	return decode(out)
}

// packet returns a packet from the other node's task to a closed port of this node's task.
func (s *swarmWorld) packet(n *swarmNode) string {
	mac, err := net.ParseMAC(vxlan.MACFor(n.task))
	if err != nil {
		s.w.t.Fatal(err)
	}
	return hex.EncodeToString(networktest.VXLAN(4097, mac, netip.AddrPortFrom(s.otherThan(n).task, 7001), netip.AddrPortFrom(n.task, 7000), "attack"))
}

// sent turns the result of a sender into that of the attempt: it reached if the task received a packet to a closed port.
func (s *swarmWorld) sent(t *testing.T, n *swarmNode, r result) result {
	t.Helper()
	if r.Outcome != bounded {
		return r
	}
	deadline := time.Now().Add(time.Second)
	for time.Now().Before(deadline) {
		if got := n.got(t); got > n.before {
			n.before = got
			return is(reached, "%s; the task of %s took it", r.Evidence, n.addr)
		}
		nodetest.Pause(50)
	}
	return is(refused, "%s; the task of %s got nothing within a second", r.Evidence, n.addr)
}

// got returns the number of packets to closed ports that the task received.
func (n *swarmNode) got(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(n.pid), "net/snmp"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if f[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "NoPorts" {
				count, err := strconv.Atoi(f[i])
				if err != nil {
					t.Fatal(err)
				}
				return count
			}
		}
	}
	t.Fatalf("no counter of UDP in %s", data)
	return 0
}
