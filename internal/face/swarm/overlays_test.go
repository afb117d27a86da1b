package swarm_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// memoryGossip is a gossip in memory with the manager as a member.
type memoryGossip struct {
	*gossiptest.Net
	manager gossip.Member
	busy    error
}

func (g *memoryGossip) Able() error { return g.busy }

func (g *memoryGossip) New(name string, advertise netip.Addr, _ []gossip.Key) (gossip.Member, error) {
	return g.Member(name, advertise), nil
}

// meshed is a rig in a Swarm with overlay networks.
func meshed(t *testing.T, attachments ...*swarmv1.NetworkAttachment) (*rig, *memoryGossip) {
	t.Helper()
	g := &memoryGossip{Net: gossiptest.NewNet()}
	g.manager = g.Member("manager", netip.MustParseAddr("127.0.0.1"))
	cfg := swarm.DefaultConfig()
	cfg.AdvertiseAddr = "192.0.2.1" // the manager is on loopback, where no other node would reach this one
	r := newRigWith(t, cfg)
	r.down()
	r.gossip = g
	r.start()
	r.Say(func(m *swarmv1.SessionMessage) {
		swarmtest.Keys(m)
		m.Node.Attachments = attachments
	})
	r.join()
	return r, g
}

// hears waits until others know so many interfaces and these names on a network.
func (g *memoryGossip) hears(t *testing.T, network string, peers int, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), swarmtest.Patience)
	defer cancel()
	if err := g.manager.Enter(ctx, network); err != nil {
		t.Fatal(err)
	}
	if peers == 0 { // only the present records: no event reports none
		cancel()
	}
	where, called := map[string]gossip.Peer{}, map[string]gossip.Endpoint{}
	is := func() bool {
		var has []string
		for _, e := range called {
			has = append(has, e.Name)
		}
		slices.Sort(has)
		return len(where) == peers && slices.Equal(has, names)
	}
	for c := range g.manager.Watch(ctx, network) {
		switch r := c.Record.(type) {
		case gossip.Peer:
			where[c.ID.Endpoint] = r
			if c.Gone {
				delete(where, c.ID.Endpoint)
			}
		case gossip.Endpoint:
			called[c.ID.Endpoint] = r
			if c.Gone {
				delete(called, c.ID.Endpoint)
			}
		}
		if peers > 0 && is() {
			return
		}
	}
	if !is() {
		t.Fatalf("others hear of %v and %v, not of %d and %v", where, called, peers, names)
	}
}

// on is a task on overlay networks.
func on(id string, networks ...*swarmv1.NetworkAttachment) *swarmv1.Task {
	task := swarmtest.Task(id, image, "sleep")
	task.Networks = networks
	return task
}

// TestATaskOnAnOverlay is announced to the other nodes while it runs, by the next agent too, which
// withdraws tasks that ended meanwhile. After the last task nothing is left.
func TestATaskOnAnOverlay(t *testing.T) {
	r, g := meshed(t, swarmtest.Overlay("ingress", 0, 2))
	if !slices.ContainsFunc(r.Described().GetEngine().GetPlugins(), func(p *swarmv1.PluginDescription) bool {
		return p.GetType() == "Network" && p.GetName() == "overlay"
	}) {
		t.Error("the node does not say that it can be on overlay networks")
	}
	a := on("a", swarmtest.Overlay("back", 1, 9), swarmtest.Overlay("ingress", 0, 9))
	a.Endpoint = &swarmv1.Endpoint{
		Ports:      []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080}, {TargetPort: 81, PublishMode: swarmv1.PortConfig_HOST}},
		VirtualIps: []*swarmv1.Endpoint_VirtualIP{{NetworkId: "back", Addr: "10.0.1.100/24"}},
	}
	r.Assign(a)
	r.Assign(on("b", swarmtest.Overlay("back", 1, 10)))
	if s := r.Reaches("a", swarmv1.TaskState_RUNNING); len(s.GetPortStatus().GetPorts()) != 1 || s.GetPortStatus().GetPorts()[0].GetPublishedPort() == 0 {
		t.Errorf("told %v", s)
	}
	r.Reaches("b", swarmv1.TaskState_RUNNING)
	g.hears(t, "back", 2, "web.1.a", "web.1.b")
	g.hears(t, "ingress", 2, "web.1.a")
	sb, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), "a")
	if err != nil || sb.Network.On("overlay:ingress") != 0 || sb.Network.On("overlay:back") != 1 || sb.Network.On("") != 2 {
		t.Errorf("%+v, %v", sb.Network, err)
	}
	for {
		changed := r.Overlays.Changed()
		if _, ports := r.Overlays.Published(); len(ports) == 1 && ports[0].Port == 8080 {
			break
		}
		<-changed
	}
	for {
		changed := r.Overlays.Changed()
		if o, _ := r.Overlays.Get("back"); len(o.Services) == 1 && o.Services[0].Addr.String() == "10.0.1.100" {
			break
		}
		<-changed
	}

	b := r.container("b").ID
	r.down()
	r.Supervisor.Exit(core.Ref{Container: b}, 0)
	r.start()
	g.hears(t, "back", 1, "web.1.a")
	r.Remove("b")
	r.gone("b")
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)
	g.hears(t, "back", 0)
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := r.Overlays.List(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	r.clean()
}

// TestATaskServesUntilOthersKnow that it is about to end: they lead connections to it until then.
func TestATaskServesUntilOthersKnow(t *testing.T) {
	r, g := meshed(t)
	if err := g.manager.Enter(t.Context(), "back"); err != nil {
		t.Fatal(err)
	}
	peer, _ := gossiptest.Task(20, "web")
	peer.Tunnel = netip.MustParseAddr("192.0.2.2")
	if err := g.manager.Announce(gossip.ID{Network: "back", Endpoint: "theirs"}, peer); err != nil {
		t.Fatal(err)
	}
	r.Assign(on("a", swarmtest.Overlay("back", 1, 9)))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	g.hears(t, "back", 1, "web.1.a")
	roottest.Eventually(t, "the node knows the others", func() bool { return r.face.Status().Overlays.Networks[0].Others == 1 })
	wanted := time.Now()
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	for c := range g.manager.Watch(t.Context(), "back") {
		if e, ok := c.Record.(gossip.Endpoint); ok && e.Disabled {
			break
		}
	}
	heard := time.Now()
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)
	if stop := r.container("a").Main.Autopsy.StopRequest; stop == nil || stop.At.Before(heard) || stop.At.Sub(wanted) < 2*time.Second {
		t.Errorf("it was to end at %v, others have heard of it at %v, and it was stopped by %+v", wanted, heard, stop)
	}
}

// TestATaskThatNeedsAnOverlay where there is none is rejected with the reason, and so is an unsupported use of
// one.
func TestATaskThatNeedsAnOverlay(t *testing.T) {
	r, g := meshed(t)
	rejected := func(id, text string, task *swarmv1.Task) {
		t.Helper()
		task.Id = id
		r.Assign(task)
		if s := r.Reaches(id, swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), text) {
			t.Errorf("%s: %q", text, s.GetErr())
		}
	}
	direct := swarmtest.Overlay("back", 1, 9)
	direct.Network.DriverState.Options["dsr"] = ""
	rejected("dsr", `option "dsr"`, on("", direct))
	r.Overlays.Unable(nil, errors.New("the kernel has no ESP"))
	secret := swarmtest.Overlay("secret", 2, 9)
	secret.Network.DriverState.Options["encrypted"] = ""
	rejected("esp", "no ESP", on("", secret))
	nowhere := swarmtest.Overlay("back", 1, 9)
	nowhere.Addresses = nil
	rejected("address", "no address", on("", nowhere))

	r.down()
	g.busy = errors.New("port 7946 is taken")
	r.start()
	r.Until("the node says that it can be on none", func() bool {
		return !slices.ContainsFunc(r.Described().GetEngine().GetPlugins(), func(p *swarmv1.PluginDescription) bool { return p.GetName() == "overlay" })
	})
	rejected("port", "port 7946 is taken", on("", swarmtest.Overlay("back", 1, 9)))
	if s := r.face.Status(); !strings.Contains(s.Overlays.Unable, "7946") {
		t.Errorf("status %+v", s.Overlays)
	}
}
