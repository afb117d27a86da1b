package swarm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// shoreIP is the test's own end of the bridge, where the registry is.
const shoreIP = "10.99.0.254"

// docked is a dockerd on a machine of its own, as a node of a Swarm that runs tasks.
type docked struct {
	*manager
	link *nodetest.Link
	addr string
	id   string // the node's, in the Swarm
}

// mixed is a Swarm of dockerds, with the first one as its manager, and of nodes of ours. Each is on a
// machine of its own, a network namespace with a cable to a bridge, and has the label `where` with its name:
// dockerd0, dockerd1, ours0 and so on. There are at most nine of a kind.
type mixed struct {
	*docked
	t       *testing.T
	dockers []*docked
	ours    []*linked
	ref     string            // of busybox, in a registry of the test's
	names   map[string]string // of nodes, by their ids
}

// dockerdAddr and oursAddr are where the n-th ones are.
func dockerdAddr(n int) string { return fmt.Sprintf("10.99.0.%d", 1+n) }
func oursAddr(n int) string    { return fmt.Sprintf("10.99.0.%d", 11+n) }

// newMixed starts one with all nodes ready. The lines of config go into our nodes' [face.swarm].
func newMixed(t *testing.T, dockers, ours int, config ...string) *mixed {
	t.Helper()
	nodetest.Bridge(t, "swarm0", shoreIP+"/24")
	ref, certs := nodetest.ServeBusybox(t, shoreIP)
	x := &mixed{t: t, ref: ref, names: map[string]string{}}
	for n := range dockers {
		link := nodetest.Plug(t, "swarm0", fmt.Sprintf("dockerd%d", n), dockerdAddr(n)+"/24")
		x.dockers = append(x.dockers, &docked{manager: startDockerd(t, link.NetNS()), link: link, addr: dockerdAddr(n)})
	}
	x.docked = x.dockers[0]
	for n := range ours {
		link := nodetest.Plug(t, "swarm0", fmt.Sprintf("ours%d", n), oursAddr(n)+"/24")
		node := nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n%s\n", certs, strings.Join(config, "\n"))})
		x.ours = append(x.ours, &linked{rig: &rig{manager: x.manager, t: t, node: node, ref: ref}, link: link})
	}
	for _, d := range x.dockers {
		d.answers()
	}
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	var err error
	if x.Swarm, err = x.InitSwarm(ctx); err != nil {
		t.Fatal(err)
	}
	var all errgroup.Group
	for _, d := range x.dockers[1:] {
		all.Go(func() error {
			_, err := d.Docker(ctx, "swarm", "join", "--advertise-addr", d.addr, "--token", x.Token, x.Address)
			return err
		})
	}
	for _, l := range x.ours {
		all.Go(func() error {
			_, err := l.node.CLI("swarm", "join", x.Address, "--token", x.Token)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	x.name(ctx)
	return x
}

// name finds out which node is which, waits until all are ready, and labels them.
func (x *mixed) name(ctx context.Context) {
	x.t.Helper()
	at := map[string]*string{}
	where := map[string]string{}
	for n, d := range x.dockers {
		at[d.addr], where[d.addr] = &d.id, fmt.Sprintf("dockerd%d", n)
	}
	for n, l := range x.ours {
		at[oursAddr(n)], where[oursAddr(n)] = &l.id, fmt.Sprintf("ours%d", n)
	}
	type node struct {
		ID     string
		Status struct{ State, Addr string }
	}
	var list []node
	roottest.Eventually(x.t, "all nodes are ready", func() bool {
		list = nil
		if err := x.Get(ctx, "/nodes", &list); err != nil {
			x.t.Fatal(err)
		}
		ready := 0
		for _, n := range list {
			if n.Status.State == "ready" {
				ready++
			}
		}
		return ready == len(at)
	})
	for _, n := range list {
		id := at[n.Status.Addr]
		if id == nil {
			x.t.Fatalf("node %+v is none of %v", n, where)
		}
		*id, x.names[n.ID] = n.ID, where[n.Status.Addr]
		x.docker("node", "update", "--availability", "active", "--label-add", "where="+x.names[n.ID], n.ID)
	}
}

// startDockerd starts a dockerd in a network namespace, which may run containers and pulls from the test's
// registry, without waiting until it answers.
func startDockerd(t *testing.T, netns string) *manager {
	t.Helper()
	packages, home := nodetest.DockerHome(t)
	d, err := dockerd.StartRunner(packages, home, shoreIP, roottest.Cgroup(t), func(argv ...string) []string { return append([]string{"nsenter", "--net=" + netns}, argv...) })
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, home: home, Daemon: d}
	t.Cleanup(m.down)
	return m
}

// overlayView is the output of `longshore swarm status` about overlay networks.
type overlayView struct {
	Gossip   string
	Networks []struct {
		Name, Error  string
		Tasks, Peers int
		Announced    bool
	}
}

func (l *linked) overlays() overlayView {
	l.t.Helper()
	var s struct{ Overlays overlayView }
	if err := json.Unmarshal([]byte(l.cli("swarm", "status", "--json")), &s); err != nil {
		l.t.Fatal(err)
	}
	return s.Overlays
}

// told waits until a node tells others of its tasks.
func (l *linked) told() {
	l.t.Helper()
	var last overlayView
	defer func() {
		if l.t.Failed() {
			l.t.Logf("%s: %+v", l.link.NetNS(), last)
		}
	}()
	roottest.Eventually(l.t, "the node is in the gossip", func() bool {
		last = l.overlays()
		for _, n := range last.Networks {
			if !n.Announced || n.Error != "" {
				return false
			}
		}
		return last.Gossip == "up" && len(last.Networks) > 0
	})
}
