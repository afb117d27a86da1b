package swarmkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/manager/keymanager"
	"github.com/moby/swarmkit/v2/manager/state"
	"github.com/moby/swarmkit/v2/manager/state/raft"
	"github.com/moby/swarmkit/v2/manager/state/store"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// period is how often the keys of the Swarm change. dockerd takes one new key at a time: a change that it
// hears of together with the next one it has missed.
const period = 4 * time.Second

// neighbours are a dockerd, where the manager is, and our node, workers of one Swarm.
type neighbours struct {
	*rig
	store *store.MemoryStore // the manager's
	nodes map[string]string  // their ids, by "theirs" and "ours"
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	packages, home := nodetest.DockerHome(t)
	r := newRig(t, options{overlays: true})
	d, err := dockerd.StartRunner(packages, home, dockerd.ManagerIP, roottest.Cgroup(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dockerd's log, its end:\n%s", d.LogTail())
		}
		if err := d.Kill(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if err := d.Answers(ctx); err != nil {
		if why := d.Lacks(); why != "" {
			t.Skipf("dockerd cannot run on this kernel: %s", why)
		}
		t.Fatal(err)
	}
	if _, err := d.Docker(ctx, "swarm", "join", "--advertise-addr", dockerd.ManagerIP, "--token", r.cluster().RootCA.JoinTokens.Worker, managerAddr); err != nil {
		t.Fatal(err)
	}
	theirs, err := d.NodeID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The manager lets nobody have its store, nor choose how often its key manager changes the keys.
	member := (*raft.Node)(reflect.ValueOf(r.m.Manager()).Elem().FieldByName("raftNode").UnsafePointer())
	return &neighbours{rig: r, store: member.MemoryStore(), nodes: map[string]string{"ours": r.id, "theirs": theirs}}
}

// rotate has a key manager change the keys from now on, and calls each after every change, with the keys.
func (n *neighbours) rotate(times int, each func(i int, c *api.Cluster)) {
	n.t.Helper()
	changes, unwatch := state.Watch(n.store.WatchQueue(), api.EventUpdateCluster{})
	defer unwatch()
	config := keymanager.DefaultConfig()
	config.RotationInterval = period
	ctx, stop := context.WithCancel(n.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = keymanager.New(n.store, config).Run(ctx) })
	defer running.Wait()
	defer stop()
	for i := range times {
		select {
		case e := <-changes:
			each(i, e.(api.EventUpdateCluster).Cluster)
		case <-time.After(roottest.Patience()):
			n.t.Fatal("the keys do not change")
		}
	}
}

// network makes an overlay network.
func (n *neighbours) network(name string, options map[string]string) string {
	n.t.Helper()
	resp, err := n.CreateNetwork(n.t.Context(), &api.CreateNetworkRequest{Spec: &api.NetworkSpec{
		Annotations: api.Annotations{Name: name}, DriverConfig: &api.Driver{Name: "overlay", Options: options},
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.Network.ID
}

// pair is a task on each node, on the same networks.
type pair map[string]*api.Task

// start starts a pair of tasks, and waits until they run and reach each other.
func (n *neighbours) start(name string, networks ...string) pair {
	n.t.Helper()
	services := map[string]string{}
	for node, id := range n.nodes {
		services[node] = n.create(node+"-"+name, 1, func(s *api.ServiceSpec, _ *api.ContainerSpec) {
			s.Endpoint = &api.EndpointSpec{Mode: api.ResolutionModeDNSRoundRobin}
			s.Task.Placement = &api.Placement{Constraints: []string{"node.id==" + id}}
			for _, network := range networks {
				s.Task.Networks = append(s.Task.Networks, &api.NetworkAttachmentConfig{Target: network})
			}
		}, "sleep", "100000")
	}
	p := pair{}
	for node, service := range services {
		n.until("a task of "+name+" runs at "+node, func() bool {
			for _, t := range n.tasks(service) {
				if c := t.Status.GetContainer(); t.Status.State == api.TaskStateRunning && t.DesiredState == api.TaskStateRunning && c != nil && c.PID != 0 {
					p[node] = t
				}
			}
			return p[node] != nil
		})
	}
	return p
}

func (p pair) ns(node string) *networktest.Namespace {
	return &networktest.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", p[node].Status.GetContainer().PID)}
}

// addrs are a task's addresses, by the names of its networks.
func (p pair) addrs(node string) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for _, on := range p[node].Networks {
		all[on.Network.Spec.Annotations.Name] = netip.MustParsePrefix(on.Addresses[0]).Addr()
	}
	return all
}

// reached says whether a namespace hears from an address, which has no server.
func reached(ctx context.Context, from *networktest.Namespace, addr netip.Addr) bool {
	return from.Try(func() error {
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "tcp4", netip.AddrPortFrom(addr, 9).String())
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if err == nil {
			_ = c.Close()
			err = errors.New("there is a server")
		}
		return err
	}) == nil
}

// meet waits until the tasks hear from each other on all their networks.
func (n *neighbours) meet(p pair) {
	n.t.Helper()
	for from, to := range map[string]string{"ours": "theirs", "theirs": "ours"} {
		for network, addr := range p.addrs(to) {
			n.until(from+" reaches "+to+" on "+network, func() bool { return reached(n.t.Context(), p.ns(from), addr) })
		}
	}
}

// seals are the indices of the node's associations of ESP.
func seals(t *testing.T) (list []string) {
	t.Helper()
	for _, line := range nodetest.Lines(t, "ip", "-n", "ours0", "xfrm", "state") {
		if _, after, found := strings.Cut(line, " spi "); found {
			list = append(list, strings.Fields(after)[0])
		}
	}
	return list
}

// keysRotate changes the keys several times: tasks of dockerd's and ours on the networks lose nothing, and those
// that start after all first keys are gone find each other.
func (n *neighbours) keysRotate(networks ...string) {
	n.t.Helper()
	const times = 6
	p := n.start("first", networks...)
	n.meet(p)
	sealed := seals(n.t)
	var counts []*atomic.Int64
	var ends []func()
	for from, to := range map[string]string{"ours": "theirs", "theirs": "ours"} {
		for _, addr := range p.addrs(to) {
			count, end := asks(n.t, p.ns(from), p.ns(to), addr)
			counts, ends = append(counts, count), append(ends, end)
		}
	}
	var first map[string]bool
	n.rotate(times, func(i int, c *api.Cluster) {
		kept := 0
		now := map[string]bool{}
		for _, k := range c.NetworkBootstrapKeys {
			now[string(k.Key)] = true
			if first[string(k.Key)] {
				kept++
			}
		}
		if first == nil {
			first = now
		} else if i >= 3 && kept > 0 {
			n.t.Errorf("after %d changes %d of the first keys are there", i, kept)
		}
		for _, count := range counts {
			until := count.Load() + 20
			n.until("answers go on", func() bool { return n.t.Failed() || count.Load() >= until })
		}
		if n.t.Failed() {
			n.t.FailNow()
		}
		if i >= 3 {
			n.meet(n.start(fmt.Sprint("late", i), networks...))
		}
	})
	for i, end := range ends {
		end()
		n.t.Logf("%d answers while the keys changed %d times", counts[i].Load(), times)
	}
	if len(sealed) > 0 {
		n.until("the first keys seal nothing", func() bool {
			now := seals(n.t)
			return len(now) > 0 && !slices.ContainsFunc(now, func(s string) bool { return slices.Contains(sealed, s) })
		})
	}
}

// TestTheKeysOfTheGossipRotateBesideADockerd: while swarmkit's key manager changes the keys at a short period,
// tasks of a dockerd and of our node reach each other, and each node hears of the other's new tasks.
func TestTheKeysOfTheGossipRotateBesideADockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		n := newNeighbours(t)
		n.keysRotate(n.network("plain", nil))
	})
}

// TestTheKeysOfEncryptedNetworksRotateBesideADockerd: the same on an encrypted network too.
func TestTheKeysOfEncryptedNetworksRotateBesideADockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		keys, err := vxlan.NewKeyring(nil)
		if err != nil {
			t.Fatal(err)
		}
		err = keys.Able()
		_ = keys.Close()
		if err != nil {
			t.Skipf("make e2e-swarm-vm has a kernel that can: %v", err)
		}
		n := newNeighbours(t)
		n.keysRotate(n.network("plain", nil), n.network("sealed", map[string]string{"encrypted": ""}))
		if len(seals(t)) == 0 {
			t.Error("nothing is sealed")
		}
	})
}
