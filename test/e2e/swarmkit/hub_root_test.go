package swarmkit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/swarmkit/v2/agent"
	"github.com/moby/swarmkit/v2/agent/exec"
	"github.com/moby/swarmkit/v2/api"
	swarmnode "github.com/moby/swarmkit/v2/node"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// pretender is an executor with its tasks' dependencies. The tasks run until they are stopped.
type pretender struct {
	exec.DependencyManager
	mu      sync.Mutex // guards running, begun
	running map[string]string
	begun   []string // the tasks that were started, one after the other
}

func (p *pretender) Describe(context.Context) (*api.NodeDescription, error) {
	return &api.NodeDescription{
		Hostname: "pretender", Platform: &api.Platform{Architecture: "x86_64", OS: "linux"}, Engine: &api.EngineDescription{EngineVersion: "swarmkit"},
		Resources: &api.Resources{NanoCPUs: 1e9, MemoryBytes: 1 << 30},
	}, nil
}
func (p *pretender) Configure(context.Context, *api.Node) error         { return nil }
func (p *pretender) SetNetworkBootstrapKeys([]*api.EncryptionKey) error { return nil }
func (p *pretender) Controller(t *api.Task) (exec.Controller, error) {
	return &controller{p: p, task: t.Copy(), ended: make(chan struct{})}, nil
}

// has returns the secrets and configs of the running tasks, by the tasks' ids.
func (p *pretender) has() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]string{}
	for id, s := range p.running {
		all[id] = s
	}
	return all
}

// beginnings is how often a task was started.
func (p *pretender) beginnings(task string) (times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.begun {
		if id == task {
			times++
		}
	}
	return times
}

type controller struct {
	p     *pretender
	task  *api.Task
	ended chan struct{}
	once  sync.Once
}

func (c *controller) Update(context.Context, *api.Task) error { return nil }
func (c *controller) Prepare(context.Context) error           { return nil }
func (c *controller) Start(context.Context) error {
	text := ""
	for _, r := range c.task.Spec.GetContainer().Secrets {
		s, err := c.p.Secrets().Get(r.SecretID)
		if err != nil {
			return err
		}
		text += string(s.Spec.Data)
	}
	for _, r := range c.task.Spec.GetContainer().Configs {
		s, err := c.p.Configs().Get(r.ConfigID)
		if err != nil {
			return err
		}
		text += string(s.Spec.Data)
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.running[c.task.ID] = text
	c.p.begun = append(c.p.begun, c.task.ID)
	return nil
}

func (c *controller) Wait(ctx context.Context) error {
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *controller) Shutdown(context.Context) error {
	c.once.Do(func() { close(c.ended) })
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	delete(c.p.running, c.task.ID)
	return nil
}
func (c *controller) Terminate(ctx context.Context) error { return c.Shutdown(ctx) }
func (c *controller) Remove(ctx context.Context) error    { return c.Shutdown(ctx) }
func (c *controller) Close() error                        { return nil }

// startPretender joins swarmkit's own node to a hub. stop ends it, as the test's end does; dir is its state directory.
func startPretender(t *testing.T, h *nodetest.Hub) (p *pretender, n *swarmnode.Node, dir string, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-swarmkit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p = &pretender{DependencyManager: agent.NewDependencyManager(plugins{}), running: map[string]string{}}
	if n, err = swarmnode.New(&swarmnode.Config{
		Hostname: "pretender", StateDir: dir, JoinAddr: h.Addr, JoinToken: h.Must("", "token"), ListenControlAPI: filepath.Join(dir, "control.sock"), Executor: p,
		ElectionTick: 10, HeartbeatTick: 1, PluginGetter: plugins{},
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
		defer cancel()
		_ = n.Stop(ctx)
	})
	t.Cleanup(stop)
	return p, n, dir, stop
}

// isReady waits until a hub has one node, and that is ready.
func isReady(t *testing.T, h *nodetest.Hub, n *swarmnode.Node) {
	t.Helper()
	roottest.Eventually(t, "the node is ready", func() bool {
		list := h.Nodes()
		return len(list) == 1 && list[0].State == "ready" && list[0].ID == n.NodeID()
	})
}

// TestSwarmkitsNodeJoinsOurHub: swarmkit's own node joins by the hub's token and runs a service with
// a secret and a config; with a renewed certificate it is let in again, also by a restarted hub, and
// gets its next task. It leaves, and joins again as another node.
func TestSwarmkitsNodeJoinsOurHub(t *testing.T) {
	beside(t, func(t *testing.T) {
		nodetest.Bridge(t, "swarm0", "10.99.0.1/24")
		h := nodetest.StartHub(t, "10.99.0.1:4000", "--heartbeat", "1s")
		p, n, dir, leave := startPretender(t, h)
		keepLog(t, filepath.Join(dir, "log"))
		isReady(t, h, n)
		stack := func(version int) string {
			return fmt.Sprintf("name: web\nservices:\n  app:\n    image: busybox\n    environment: {VERSION: \"%d\"}\n    secrets: [key]\n    configs: [conf]\n"+
				"    deploy: {mode: global, update_config: {monitor: 1ms}}\nsecrets: {key: {file: %s/passphrase}}\nconfigs: {conf: {content: and-a-config}}\n", version, h.Dir)
		}
		runs := func(version int) {
			t.Helper()
			h.Must(stack(version), "apply", "-f", "-")
			roottest.Eventually(t, fmt.Sprintf("version %d runs", version), func() bool {
				list := h.Tasks("web_app")
				for _, task := range list {
					if task.State == "running" && task.Version == uint64(version) {
						all := p.has()
						return len(all) == 1 && strings.Contains(all[task.ID], "a passphrase of tests") && strings.HasSuffix(all[task.ID], "and-a-config")
					}
				}
				return false
			})
		}
		runs(1)

		certificate := func() string {
			data, err := os.ReadFile(filepath.Join(dir, "certificates", "swarm-node.crt"))
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		before := certificate()
		h.Must("", "node", "renew", n.NodeID())
		roottest.Eventually(t, "its certificate is another one", func() bool { return certificate() != before })
		isReady(t, h, n)
		runs(2)
		h.Kill()
		h.Up()
		isReady(t, h, n)
		runs(3)

		leave()
		roottest.Eventually(t, "the node is down", func() bool { return h.Nodes()[0].State == "down" })
		left := n.NodeID()
		h.Must("", "node", "rm", left)
		p, n, _, _ = startPretender(t, h)
		isReady(t, h, n)
		if n.NodeID() == left {
			t.Error("a node that was removed is back")
		}
		runs(3)
		h.Must("name: web\nservices: {}\n", "apply", "-f", "-")
		roottest.Eventually(t, "nothing runs any more", func() bool { return len(h.Tasks("web_app")) == 0 && len(p.has()) == 0 })
	})
}

// TestSwarmkitsNodeFindsAnotherHub: the node's hub is killed; the node finds the other hub, which
// the first one had named, and gets the declarations made there. The first one returns, and the
// other is killed. The node's task is not touched.
func TestSwarmkitsNodeFindsAnotherHub(t *testing.T) {
	beside(t, func(t *testing.T) {
		nodetest.Bridge(t, "swarm0", "10.99.0.1/24")
		nodetest.Lines(t, "ip", "address", "add", "10.99.0.2/24", "dev", "swarm0")
		flags := append(nodetest.StartEtcd(t), "--heartbeat", "1s", "--lease", "3s")
		first, second := nodetest.StartHub(t, "10.99.0.1:4000", flags...), nodetest.StartHub(t, "10.99.0.2:4000", flags...)
		p, n, dir, _ := startPretender(t, first)
		keepLog(t, filepath.Join(dir, "log"))
		isReady(t, first, n)
		knows := func(addrs ...string) {
			t.Helper()
			roottest.Eventually(t, "the node knows "+strings.Join(addrs, " "), func() bool {
				peers := n.Remotes()
				return len(peers) == len(addrs) && !slices.ContainsFunc(peers, func(p api.Peer) bool { return !slices.Contains(addrs, p.Addr) })
			})
		}
		knows(first.Addr, second.Addr)
		const stack = "name: web\nservices:\n  app: {image: busybox, deploy: {mode: global}}\n"
		first.Must(stack, "apply", "-f", "-")
		task := first.Running("web_app", 1)[0].ID
		lost := func(gone, left *nodetest.Hub, service string) {
			t.Helper()
			gone.Kill()
			left.Must(stack+"  "+service+": {image: busybox, deploy: {mode: global}}\n", "apply", "-f", "-")
			another := left.Running("web_"+service, 1)[0].ID
			isReady(t, left, n)
			if now := left.Running("web_app", 1); now[0].ID != task {
				t.Errorf("the task is another one: %+v, it was %s", now, task)
			}
			if all := p.has(); len(all) != 2 {
				t.Errorf("the node runs %v, want %s and %s", all, task, another)
			}
			left.Must(stack, "apply", "-f", "-")
			roottest.Eventually(t, service+" has ended", func() bool { return len(left.Tasks("web_"+service)) == 0 && len(p.has()) == 1 })
			gone.Up()
			knows(gone.Addr, left.Addr)
		}
		lost(first, second, "one")
		lost(second, first, "two")
		if begun := p.beginnings(task); begun != 1 {
			t.Errorf("the task was started %d times", begun)
		}
	})
}
