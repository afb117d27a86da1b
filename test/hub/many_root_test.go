package hub

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/assignment"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// disruptionsEnv is how many hubs and members of etcd TestHubsAndMembersDie kills; a few in CI.
const disruptionsEnv = "LONGSHORE_HUB_KILLS"

// edge is a worker with tasks that run at once, without containers. Our code holds its session.
type edge struct {
	id       *identity.Identity
	managers *session.Managers
	reports  *session.Reports

	mu    sync.Mutex // guards set, tasks, begun, ended, wrong
	set   assignment.Set
	tasks map[string]*swarmv1.Task
	begun map[string]int // how often each task was started
	ended map[string]bool
	wrong []string
}

func startEdge(t *testing.T, token, addr string) *edge {
	t.Helper()
	parsed, err := identity.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.Join(t.Context(), identity.Request{Addr: addr, Token: parsed})
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{
		id: id, managers: session.NewManagers([]session.Peer{{Addr: addr}}), reports: session.NewReports(),
		tasks: map[string]*swarmv1.Task{}, begun: map[string]int{}, ended: map[string]bool{},
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		session.New(session.Options{Member: e, Worker: e, Managers: e.managers, Reports: e.reports, Logger: slog.New(slog.DiscardHandler)}).Run(ctx)
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return e
}

func (e *edge) Identity() *identity.Identity { return e.id }

func (e *edge) Describe() *swarmv1.NodeDescription {
	return &swarmv1.NodeDescription{
		Hostname: e.id.NodeID, TlsInfo: e.id.TLSInfo(), Platform: &swarmv1.Platform{Os: "linux"}, Resources: &swarmv1.Resources{NanoCpus: 1e9, MemoryBytes: 1 << 30},
		Engine: &swarmv1.EngineDescription{EngineVersion: "test"},
	}
}

func (e *edge) Registered() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, task := range e.tasks {
		e.reportLocked(id, task)
	}
}

func (e *edge) Configured(m *swarmv1.SessionMessage) error {
	e.managers.Replace(m.GetManagers())
	return nil
}

func (e *edge) Assigned(m *swarmv1.AssignmentsMessage, first bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first {
		e.set.Opened()
	}
	c, err := e.set.Apply(m)
	if err != nil {
		return err
	}
	for _, task := range c.Tasks {
		id := task.GetId()
		if task.GetNodeId() != e.id.NodeID {
			e.wrong = append(e.wrong, fmt.Sprintf("task %s of node %s came to %s", id, task.GetNodeId(), e.id.NodeID))
		}
		if e.tasks[id] == nil {
			e.begun[id]++
		}
		e.tasks[id] = task
		e.reportLocked(id, task)
	}
	for _, id := range c.Removed {
		if !e.ended[id] {
			e.wrong = append(e.wrong, fmt.Sprintf("task %s was taken from node %s while it ran", id, e.id.NodeID))
		}
		delete(e.tasks, id)
		e.reports.Drop(id)
	}
	return nil
}

// reportLocked reports a task in its desired state.
func (e *edge) reportLocked(id string, task *swarmv1.Task) {
	state := swarmv1.TaskState_RUNNING
	if task.GetDesiredState() > swarmv1.TaskState_RUNNING || e.ended[id] {
		state = swarmv1.TaskState_SHUTDOWN
		e.ended[id] = true
	}
	e.reports.Put(id, &swarmv1.TaskStatus{State: state, Timestamp: timestamppb.Now()})
}

func (e *edge) Listen(ctx context.Context, _ swarmv1.LogBrokerClient) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (e *edge) Paced(time.Duration)              {}
func (e *edge) Expired(error)                    {}
func (e *edge) Renewed(*identity.Identity) error { return nil }

// runs are the images of the tasks that run, by service.
func (e *edge) runs() map[string][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string][]string{}
	for id, task := range e.tasks {
		if !e.ended[id] {
			name := task.GetServiceAnnotations().GetName()
			all[name] = append(all[name], task.GetSpec().GetContainer().GetImage())
		}
	}
	return all
}

// stackOf declares a service on each node, of a version.
func stackOf(name string, version int) string {
	return fmt.Sprintf("name: %s\nservices: {web: {image: \"web:%d\", deploy: {mode: global, update_config: {parallelism: 100}}}}\n", name, version)
}

// lease is the time after which the hubs of threeHubs miss one that has died.
const lease = 3 * time.Second

// threeHubs starts three hubs before one etcd.
func threeHubs(t *testing.T, etcd *etcdtest.Etcd) (hubs []*nodetest.Hub) {
	t.Helper()
	for i := range 3 {
		hubs = append(hubs, nodetest.StartHub(t, fmt.Sprintf("127.0.0.1:%d", 4001+i), "--etcd", strings.Join(etcd.Endpoints, ","), "--etcd-cert", etcd.Cert, "--etcd-key", etcd.Key,
			"--etcd-ca", etcd.CA, "--heartbeat", "1s", "--grace", "5", "--lease", lease.String(), "--move-after", "1h"))
	}
	return hubs
}

// TestSchedulingComesBackWithinTwoLeases kills each of three hubs, and so the one that leads: within two leases another one
// schedules a stack that was declared after the death. LONGSHORE_TEST_PATIENCE multiplies the bound, for a busy machine.
func TestSchedulingComesBackWithinTwoLeases(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		hubs := threeHubs(t, etcdtest.NewEtcd(t, 3))
		token := hubs[0].Must("", "token")
		for i := range 3 {
			startEdge(t, token, hubs[i].Addr)
		}
		bound := time.Duration(int64(2*lease) * int64(roottest.Patience()/time.Minute))
		var longest time.Duration
		for i, h := range hubs {
			other, name := hubs[(i+1)%3], fmt.Sprintf("after%d", i)
			roottest.Eventually(t, "all nodes are ready", func() bool {
				return !slices.ContainsFunc(other.Nodes(), func(n nodetest.HubNode) bool { return n.State != "ready" })
			})
			h.Kill()
			died := time.Now()
			roottest.Eventually(t, "a declaration is accepted", func() bool {
				_, err := other.CLI(stackOf(name, 1), "apply", "-f", "-")
				return err == nil
			})
			roottest.Eventually(t, "each node has a task of it", func() bool { return len(other.Tasks(name+"_web")) == 3 })
			took := time.Since(died)
			longest = max(longest, took)
			if took > bound {
				t.Errorf("after the death of hub %d scheduling came back within %s, want %s", i, took, bound)
			}
			h.Up()
		}
		if longest < lease/2 {
			t.Errorf("scheduling was never away for longer than %s: no hub that led was killed", longest)
		}
		t.Logf("scheduling came back within %s at most; a lease is %s", longest.Round(time.Millisecond), lease)
	})
}

// TestHubsAndMembersDie: while three hubs and an etcd of three members are killed one after the other
// and operators declare stacks, each accepted one lasts, each node has just its tasks, none had a
// task of another one's, and unchanged tasks were neither ended nor started again.
func TestHubsAndMembersDie(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		kills := 2
		if text := os.Getenv(disruptionsEnv); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			kills = n
		}
		etcd := etcdtest.NewEtcd(t, 3)
		hubs := threeHubs(t, etcd)
		token := hubs[0].Must("", "token")
		for _, h := range hubs {
			if other := h.Must("", "token"); other != token {
				t.Fatalf("the hubs are of different fleets: %s, %s", token, other)
			}
		}
		var edges []*edge
		for i := range 6 {
			edges = append(edges, startEdge(t, token, hubs[i%3].Addr))
		}
		const steady = "name: steady\nservices: {each: {image: \"s:1\", deploy: {mode: global}}, pair: {image: \"s:1\", deploy: {replicas: 4}}}\n"
		hubs[0].Must(steady, "apply", "-f", "-")
		before := map[string]bool{}
		for _, task := range append(hubs[1].Running("steady_each", 6), hubs[2].Running("steady_pair", 4)...) {
			before[task.ID] = true
		}

		// Declarations go to any hub that answers, until they are accepted.
		ctx, stop := context.WithCancel(t.Context())
		accepted := map[string]int{}
		var declaring sync.WaitGroup
		for i := range 2 {
			name := fmt.Sprintf("stack%d", i)
			declaring.Go(func() {
				for version := 1; ctx.Err() == nil; version++ {
					for ctx.Err() == nil {
						if _, err := hubs[rand.IntN(3)].CLI(stackOf(name, version), "apply", "-f", "-"); err == nil {
							accepted[name] = version
							break
						}
					}
				}
			})
			accepted[name] = 0
		}
		for n := range kills {
			hub, member := n%2 == 0 || n%5 == 4, n%2 == 1 || n%5 == 4
			i, j := rand.IntN(3), rand.IntN(3)
			if member {
				etcd.Kill(j)
			}
			if hub && !member && n%4 == 2 {
				// It sleeps until others have its nodes, and wakes up as one that thinks that it has them, and leads.
				hubs[i].Signal(syscall.SIGSTOP)
				roottest.Eventually(t, "a declaration is accepted while it sleeps", func() bool {
					_, err := hubs[(i+1)%3].CLI(stackOf("during", n+1), "apply", "-f", "-")
					return err == nil
				})
				roottest.Eventually(t, "all nodes have what is declared meanwhile", func() bool {
					return !slices.ContainsFunc(edges, func(e *edge) bool {
						return !slices.Equal(e.runs()["during_web"], []string{fmt.Sprintf("web:%d", n+1)})
					})
				})
				hubs[i].Signal(syscall.SIGCONT)
				hub = false
			} else if hub {
				hubs[i].Kill()
			}
			// The rest continues: something is accepted while they are away.
			roottest.Eventually(t, "a declaration is accepted with the others", func() bool {
				_, err := hubs[(i+1)%3].CLI(stackOf("during", n+1), "apply", "-f", "-")
				return err == nil
			})
			if member {
				etcd.Start(j)
			}
			if hub {
				hubs[i].Up()
			}
		}
		stop()
		declaring.Wait()
		accepted["during"] = kills

		for i, h := range hubs {
			roottest.Eventually(t, fmt.Sprintf("hub %d knows that all nodes are ready", i), func() bool {
				return !slices.ContainsFunc(h.Nodes(), func(n nodetest.HubNode) bool { return n.State != "ready" })
			})
		}
		want := map[string][]string{"steady_each": {"s:1"}}
		for name, version := range accepted {
			if version > 0 {
				want[name+"_web"] = []string{fmt.Sprintf("web:%d", version)}
			}
		}
		for _, e := range edges {
			var runs map[string][]string
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("node %s runs %v, want %v", e.id.NodeID, runs, want)
				}
			})
			roottest.Eventually(t, "each node runs what was accepted", func() bool {
				runs = e.runs()
				delete(runs, "steady_pair")
				return maps.EqualFunc(runs, want, slices.Equal)
			})
		}
		after := map[string]bool{}
		for _, task := range append(hubs[1].Running("steady_each", 6), hubs[2].Running("steady_pair", 4)...) {
			after[task.ID] = true
		}
		if !maps.Equal(before, after) {
			t.Errorf("tasks of a stack that was not changed were replaced: %v, %v", before, after)
		}
		for _, e := range edges {
			e.mu.Lock()
			for id, n := range e.begun {
				if n > 1 {
					t.Errorf("task %s was started %d times", id, n)
				}
			}
			if len(e.wrong) > 0 {
				t.Errorf("node %s: %v", e.id.NodeID, e.wrong)
			}
			e.mu.Unlock()
		}
		t.Logf("%d kills, accepted: %v", kills, accepted)
	})
}
