package swarm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheAgentDiesAtEveryStageOfAnOverlay: after the agent's death at any stage of the overlay networks of a task,
// with a service's address and a published port, an untouched task is the same process, everything exists once, other
// members hear of that and nothing else, and in the end nothing is left.
func TestTheAgentDiesAtEveryStageOfAnOverlay(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var all []stageDeath
		for _, stage := range overlays.Stages() {
			if !onlyAtTheStart(stage) {
				all = append(all, stageDeath{stage, true})
			}
			if !strings.Contains(stage, "_ingress.") || strings.Contains(stage, "open_") {
				all = append(all, stageDeath{stage, false})
			}
		}
		dieAtEach(t, all)
	})
}

// TestTheAgentDiesAtEveryStageOfAnOverlayTask is the same at every stage of the task itself.
func TestTheAgentDiesAtEveryStageOfAnOverlayTask(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var all []stageDeath
		for _, stage := range engine.Stages() {
			switch verb, _, _ := strings.Cut(stage, "."); verb {
			case "create_sandbox", "create", "start", "stop", "stop_sandbox", "remove", "remove_sandbox":
				all = append(all, stageDeath{stage, false})
			}
		}
		dieAtEach(t, all)
	})
}

// dieAtEach kills the agent at every sixth stage, or at all.
func dieAtEach(t *testing.T, all []stageDeath) {
	t.Helper()
	o := newOverlayStages(t)
	step := 6
	if os.Getenv("LONGSHORE_OVERLAY_STAGES") != "" {
		step = 1
	}
	t.Logf("every %d-th of %d deaths", step, len(all))
	for i := 0; i < len(all); i += step {
		if !t.Run(all[i].String(), func(t *testing.T) { o.dies(t, all[i]) }) {
			return
		}
	}
}

// stageDeath is where the agent dies: while it starts, if it comes there then, or when all the earlier state is up.
type stageDeath struct {
	stage string
	late  bool
}

func (d stageDeath) String() string {
	if d.late {
		return d.stage + "/late"
	}
	return d.stage
}

// onlyAtTheStart reports whether a stage comes in an agent's life once.
func onlyAtTheStart(stage string) bool {
	return slices.ContainsFunc([]string{".member.", ".set_keys.", ".set_gossip.", ".open_ingress."}, func(s string) bool { return strings.Contains(stage, s) })
}

// The networks' names, and the addresses of the tasks.
const (
	backNet, meshNet = "back", "ingress"
	vip              = "10.0.1.100"
	published        = "8080"
)

// overlayStages is a worker with a dying agent, and a gossip member beside it.
type overlayStages struct {
	*cluster
	*worker
	t      *testing.T
	spy    *spy
	starts nodetest.Starts
	rounds int
	before nodetest.Holdings
	kept   string // its process
}

func newOverlayStages(t *testing.T) *overlayStages {
	t.Helper()
	c := newCluster(t, 1)
	o := &overlayStages{cluster: c, worker: c.workers[0], t: t, spy: newSpy(t)}
	o.starts = o.NewStarts()
	o.mesh(true)
	o.spy.enter(backNet)
	o.spy.enter(meshNet)
	kept := o.on("kept", sleeps, swarmtest.Overlay(backNet, 1, 9))
	kept.ServiceAnnotations.Name, kept.ServiceId = "kept", "kept"
	o.Assign(kept)
	o.Reaches("kept", swarmv1.TaskState_RUNNING)
	o.quiet(t)
	o.kept = o.Running()["kept"]
	o.round(t) // remains of the first task after the last are no leak
	o.Baseline(t)
	o.before = o.holds(t)
	return o
}

// mesh has the manager give the node its place on the network of published ports, or none.
func (o *overlayStages) mesh(on bool) {
	o.Say(func(m *swarmv1.SessionMessage) {
		swarmtest.Keys(m)
		if on {
			m.Node.Attachments = []*swarmv1.NetworkAttachment{swarmtest.Overlay(meshNet, 0, 2)}
		}
	})
}

// on is a task with networks, which writes down that it was started.
func (o *overlayStages) on(id, script string, networks ...*swarmv1.NetworkAttachment) *swarmv1.Task {
	task := o.task(o.worker, id, o.starts.Script(script), never)
	c := task.GetSpec().GetContainer()
	c.Env, c.StopGracePeriod = []string{"TASK=" + id}, durationpb.New(50*time.Millisecond)
	c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_BIND, Source: o.starts.Dir, Target: nodetest.StartsAt}}
	task.Networks = networks
	return task
}

// front is the network of a round's task alone. All names are of one length, as managers' ids are: where one begins
// like another, docker's library removes the records of both when the shorter one is left.
func (o *overlayStages) front() string { return fmt.Sprintf("front%04d", o.rounds) }

// id is that task's.
func (o *overlayStages) id() string { return fmt.Sprintf("x%d", o.rounds) }

// phase is a step in the life of a round's task: an action, its completion, and the stages that come in it at the
// latest.
type phase struct {
	name   string
	do     func()
	done   func() bool
	stages []string
}

func (o *overlayStages) phases() []phase {
	id := o.id()
	state := func(s swarmv1.TaskState) func() bool { return func() bool { return o.told(id).GetState() >= s } }
	return []phase{
		{"run", func() {
			o.spy.enter(o.front())
			o.spy.far(true)
			n := 2 + o.rounds%250
			x := o.on(id, "mkdir /www; echo $TASK >/www/index.html; exec httpd -f -p 80 -h /www", swarmtest.Overlay(o.front(), n, 9), swarmtest.Overlay(backNet, 1, 10), swarmtest.Overlay(meshNet, 0, 9))
			x.Endpoint = &swarmv1.Endpoint{
				Ports:      []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080}},
				VirtualIps: []*swarmv1.Endpoint_VirtualIP{{NetworkId: backNet, Addr: vip + "/24"}},
			}
			o.Assign(x)
		}, state(swarmv1.TaskState_RUNNING), []string{"open", "set_peers", "prune", "set_names", "set_services", "publish", "begin", "enter", "announce_peer", "announce_names"}},
		{"mesh", func() {}, func() bool { return true }, nil},
		{"stop", func() { o.Want(id, swarmv1.TaskState_SHUTDOWN) }, state(swarmv1.TaskState_COMPLETE), []string{"withdraw_peer", "withdraw_names", "close", "exit"}},
		{"remove", func() { o.Remove(id) }, func() bool { return len(o.records(o.worker)) == 1 }, nil},
	}
}

// records are the containers that a node lists, none while it does not answer.
func (o *overlayStages) records(w *worker) map[string]container {
	out, err := w.CLI("ps", "--all", "--json")
	var list []container
	all := map[string]container{}
	if err == nil && json.Unmarshal([]byte(out), &list) == nil {
		for _, c := range list {
			all[c.Key] = c
		}
	}
	return all
}

// dead reports whether the agent has died.
func (o *overlayStages) dead() bool { return nodetest.Incarnation(o.Pid()) == "" }

// dies is one death, and the checks of the next agent.
func (o *overlayStages) dies(t *testing.T, d stageDeath) {
	o.rounds++
	o.Kill()
	now := filepath.Join(o.Dir, "now")
	env := "LONGSHORE_FAILPOINT=" + d.stage
	if d.late {
		env += "@" + now
	}
	o.SetEnv(env)
	o.Launch()
	if d.late {
		o.quiet(t)
		if err := os.WriteFile(now, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, what, _ := strings.Cut(d.stage, ".")
	what, _, _ = strings.Cut(what, ".")
	at := -1
	list := o.phases()
	for i, p := range list {
		if p.name == "mesh" && strings.Contains(d.stage, "close_ingress") {
			o.mesh(false)
			p.stages = []string{"close_ingress"}
		} else {
			p.do()
		}
		must := strings.HasPrefix(d.stage, "overlay.") && slices.Contains(p.stages, what) || i == len(list)-1
		roottest.Eventually(t, "the agent dies, or goes on to "+p.name, func() bool { return o.dead() || !must && p.done() })
		if o.dead() {
			at = i
			break
		}
	}
	if ws := o.Died(); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the agent did not die at the stage: wait status %#x", ws)
	}
	t.Logf("dead in the phase %q", list[at].name)
	_ = os.Remove(now)
	o.mesh(true)
	o.SetEnv()
	o.Up()
	for i, p := range list[at:] {
		if i > 0 {
			p.do()
		}
		o.reached(t, p)
	}
	o.over(t)
}

// reached waits until a phase is over with an agent that lives.
func (o *overlayStages) reached(t *testing.T, p phase) {
	t.Helper()
	roottest.Eventually(t, "it comes to the end of "+p.name, p.done)
	if p.name == "run" {
		o.whole(t)
	}
}

// round is a task's life without a death.
func (o *overlayStages) round(t *testing.T) {
	t.Helper()
	for _, p := range o.phases() {
		p.do()
		o.reached(t, p)
	}
	o.over(t)
}

// whole waits until the round's task is reached in each way, and others hear of it.
func (o *overlayStages) whole(t *testing.T) {
	t.Helper()
	id, n := o.id(), 2+o.rounds%250
	if s := o.told(id); s.GetState() != swarmv1.TaskState_RUNNING {
		t.Fatalf("it does not run: %v", s)
	}
	all := o.containers()
	lookUp := func(task, name string) []string {
		return []string{"nsenter", "--target", strconv.Itoa(all[task].Pid), "--mount", "--net", "--root", "--", "/bin/nslookup", name + "."}
	}
	get := []string{"curl", "--silent", "--max-time", "2"}
	kept := append([]string{"nsenter", "--target", strconv.Itoa(all["kept"].Pid), "--net", "--"}, get...)
	for _, a := range []struct {
		what, want string
		argv       []string
	}{
		{"the service's name", vip, lookUp("kept", "web")},
		{"the task's name", "10.0.1.10", lookUp("kept", "web.1."+id)},
		{"its own service", fmt.Sprintf("10.0.%d.9", n), lookUp(id, "tasks.web")},
		{"another node's service", "10.0.1.200", lookUp(id, "tasks.far")},
		{"the service's address", id, append(slices.Clip(kept), "http://"+vip+"/")},
		{"the task's address", id, append(slices.Clip(kept), "http://10.0.1.10/")},
		{"the published port", id, append(slices.Clip(get), "http://"+oursIP+":"+published+"/")},
	} {
		o.answers(t, a.what, a.want, a.argv)
	}
	o.spy.hears(t, backNet, "name kept.1.kept 10.0.1.9", "name web.1."+id+" 10.0.1.10", "peer 10.0.1.10", "peer 10.0.1.9")
	o.spy.hears(t, meshNet, "name web.1."+id+" 10.0.0.9", "peer 10.0.0.2", "peer 10.0.0.9")
	o.spy.hears(t, o.front(), fmt.Sprintf("name web.1.%s 10.0.%d.9", id, n), fmt.Sprintf("peer 10.0.%d.9", n))
	if links := o.tunnels(t); len(links) != 3 {
		t.Errorf("the node has the namespaces %v, and is on three networks", links)
	}
	o.Check()
}

// answers waits until a command prints a word.
func (o *overlayStages) answers(t *testing.T, what, want string, argv []string) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("%s: %q answered %s", what, argv, last)
		}
	}()
	roottest.Eventually(t, what+" answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		last = fmt.Sprintf("%q, %v", out, err)
		return err == nil && slices.Contains(strings.Fields(string(out)), want)
	})
}

// oursIP is the worker's address.
const oursIP = "10.98.0.2"

// quiet waits until only the untouched task is left, with an agent that knows it.
func (o *overlayStages) quiet(t *testing.T) {
	t.Helper()
	o.spy.hears(t, backNet, "name kept.1.kept 10.0.1.9", "peer 10.0.1.9")
	o.spy.hears(t, meshNet, "peer 10.0.0.2")
	var last string
	roottest.Eventually(t, "the agent is in the gossip and on its networks", func() bool {
		out, err := o.CLI("swarm", "status", "--json")
		last = fmt.Sprint(out, err)
		var s struct {
			Overlays struct {
				Gossip   string
				Networks []struct {
					Error     string
					Announced bool
				}
			}
		}
		return err == nil && json.Unmarshal([]byte(out), &s) == nil && s.Overlays.Gossip == overlays.Up && len(s.Overlays.Networks) == 2 &&
			s.Overlays.Networks[0].Announced && s.Overlays.Networks[1].Announced && s.Overlays.Networks[0].Error+s.Overlays.Networks[1].Error == ""
	})
	if t.Failed() {
		t.Log(last)
	}
}

// over asserts that nothing is left of a round.
func (o *overlayStages) over(t *testing.T) {
	t.Helper()
	o.spy.far(false)
	o.quiet(t)
	o.spy.hears(t, o.front())
	o.spy.exit(t, o.front())
	if n := o.starts.Of(t)[o.id()]; n > 1 {
		t.Errorf("the task was started %d times", n)
	}
	if now := o.Running(); len(now) != 1 || o.kept != "" && now["kept"] != o.kept {
		t.Errorf("what nobody touched was %s; there runs %v", o.kept, now)
	}
	o.Check()
	if o.before == nil {
		return
	}
	var diff string
	defer func() {
		if t.Failed() {
			t.Log(diff)
		}
	}()
	roottest.Eventually(t, "the node holds what it held before", func() bool {
		diff = cmp.Diff(o.before, o.holds(t))
		return diff == ""
	})
}

// tunnels are the namespaces of the node's overlay networks.
func (o *overlayStages) tunnels(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(o.State, "cni", "overlays", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var counted = regexp.MustCompile(`# handle \d+|counter packets \d+ bytes \d+|expires \S+`)

// holds is the node's holdings, with the firewall and the links of its own namespace.
func (o *overlayStages) holds(t *testing.T) nodetest.Holdings {
	t.Helper()
	h := o.Holdings(t).Lasting()
	for name, argv := range map[string][]string{"node's nft": {"nft", "list", "ruleset"}, "node's links": {"ip", "-brief", "link"}} {
		for _, line := range nodetest.Lines(t, "nsenter", append([]string{"--net=" + o.NetNS()}, argv...)...) {
			if name == "node's links" {
				line, _, _ = strings.Cut(line, " ")
				line, _, _ = strings.Cut(line, "@")
			}
			h[name] = append(h[name], counted.ReplaceAllString(line, ""))
		}
		slices.Sort(h[name])
	}
	return h
}

// spy is another member of the gossip, and hears as much as other nodes.
type spy struct {
	t      *testing.T
	member gossip.Member

	mu    sync.Mutex // guards heard, lost, done
	heard map[string]map[string]string
	lost  map[string]int // how often a record has gone
	done  map[string]context.CancelFunc
}

func newSpy(t *testing.T) *spy {
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
	m, err := networkdb.Factory{}.New("spy", netip.MustParseAddr(managerIP), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Leave)
	return &spy{t: t, member: m, heard: map[string]map[string]string{}, lost: map[string]int{}, done: map[string]context.CancelFunc{}}
}

// enter has it hear of a network, from now on.
func (s *spy) enter(network string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.mu.Lock()
	s.heard[network], s.done[network] = map[string]string{}, cancel
	s.mu.Unlock()
	if err := s.member.Begin(ctx, network); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for c := range s.member.Watch(ctx, network) {
			text := ""
			switch r := c.Record.(type) {
			case gossip.Peer:
				text = "peer " + r.Addr.Addr().String()
			case gossip.Endpoint:
				text = "name " + r.Name + " " + r.Addr.String()
			}
			s.mu.Lock()
			if key := text[:4] + c.ID.Endpoint; c.Gone {
				delete(s.heard[network], key)
				s.lost[text]++
			} else {
				s.heard[network][key] = text
			}
			s.mu.Unlock()
		}
	}()
}

func (s *spy) exit(t *testing.T, network string) {
	t.Helper()
	s.mu.Lock()
	s.done[network]()
	s.mu.Unlock()
	if err := s.member.Exit(network); err != nil {
		t.Fatal(err)
	}
}

// far tells of a task on a node that is far away, or takes that back.
func (s *spy) far(there bool) {
	s.t.Helper()
	id := gossip.ID{Network: backNet, Endpoint: gossip.EndpointID("far", backNet)}
	addr := netip.MustParsePrefix("10.0.1.200/24")
	for _, r := range []gossip.Record{
		gossip.Peer{Addr: addr, MAC: "02:42:0a:00:01:c8", Tunnel: netip.MustParseAddr(managerIP)},
		gossip.Endpoint{Name: "far.1.far", Service: "far", ServiceID: "far", VIP: netip.MustParseAddr("10.0.1.201"), Addr: addr.Addr()},
	} {
		tell := s.member.Withdraw
		if there {
			tell = s.member.Announce
		}
		if err := tell(id, r); err != nil {
			s.t.Fatal(err)
		}
	}
}

// hears waits until others know of these records on a network, and of no others.
func (s *spy) hears(t *testing.T, network string, want ...string) {
	t.Helper()
	var has []string
	defer func() {
		if t.Failed() {
			t.Logf("on %s others hear of %q, not of %q", network, has, want)
		}
	}()
	roottest.Eventually(t, "others hear of what there is on "+network, func() bool {
		has = nil
		s.mu.Lock()
		for _, text := range s.heard[network] {
			has = append(has, text)
		}
		s.mu.Unlock()
		slices.Sort(has)
		return slices.Equal(has, want)
	})
}
