package hub

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// hubIP is where the hub and the registry are, on a bridge of the test's own network namespace.
const hubIP = "10.97.0.1"

// stack declares a service on each node and one that runs twice, with a secret and a config.
const stack = `
name: shop
services:
  agent:
    image: %[1]s
    command: [sh, -c, 'echo "hello from $$WHO with $$(cat /run/secrets/key) and $$(cat /etc/app.conf)"; echo oops >&2; trap "exit 0" TERM; while true; do sleep 1 & wait $$!; done']
    environment: {WHO: "%[2]s"}
    secrets: [key]
    configs: [{source: conf, target: /etc/app.conf}]
    deploy: {mode: global, restart_policy: {delay: 100ms}, placement: {constraints: [node.platform.os == linux]}}
  pair:
    image: %[1]s
    command: [sleep, "100000"]
    stop_grace_period: 10ms
    deploy: {replicas: %[3]d, restart_policy: {delay: 100ms}}
secrets: {key: {environment: KEY}}
configs: {conf: {content: the-config}}
`

// TestAStackOnOurWorkers: workers of ours join a hub by its token, run a file's services, run
// on when the hub dies, take changes, and have nothing left when the file has none.
func TestAStackOnOurWorkers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		nodetest.Bridge(t, "hub0", hubIP+"/24")
		h := nodetest.StartHub(t, hubIP+":4000")
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", hubIP+":0")
		if err != nil {
			t.Fatal(err)
		}
		registry, server := imagetest.Serve(l)
		t.Cleanup(func() { _ = server.Close() })
		ref := registry.Push("busybox", "latest", built)
		certs := t.TempDir()
		if err := os.Mkdir(filepath.Join(certs, registry.Host), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(certs, registry.Host, "hosts.toml"), []byte("server = \"http://"+registry.Host+"\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		token := h.Must("", "token")
		var workers []*nodetest.Node
		for i := range 2 {
			link := nodetest.Plug(t, "hub0", fmt.Sprintf("edge%d", i), fmt.Sprintf("10.97.0.%d/24", i+2))
			n := nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", certs)})
			if _, err := n.CLI("swarm", "join", h.Addr, "--token", token); err != nil {
				t.Fatal(err)
			}
			workers = append(workers, n)
		}
		roottest.Eventually(t, "both workers are ready", func() bool {
			ready := 0
			for _, n := range h.Nodes() {
				if n.State == "ready" && strings.HasPrefix(n.Engine, "longshore ") {
					ready++
				}
			}
			return ready == 2
		})

		t.Setenv("KEY", "planted-secret")
		file := func(who string, replicas int) string { return fmt.Sprintf(stack, ref, who, replicas) }
		if out := h.Must(file("me", 2), "diff", "-f", "-"); !strings.Contains(out, "create  service  agent") || len(h.Tasks("shop_agent")) > 0 {
			t.Errorf("diff: %s", out)
		}
		h.Must(file("me", 2), "apply", "-f", "-")
		agents, pair := h.Running("shop_agent", 2), h.Running("shop_pair", 2)
		if pair[0].Node == pair[1].Node || agents[0].Node == agents[1].Node {
			t.Errorf("two tasks on one node: %+v %+v", agents, pair)
		}
		roottest.Eventually(t, "the output is there", func() bool {
			out := h.Must("", "logs", "shop_agent")
			return strings.Count(out, "hello from me with planted-secret and the-config") == 2
		})
		if out := h.Must(file("me", 2), "apply", "-f", "-"); strings.Contains(out, "update") || strings.Contains(out, "create") {
			t.Errorf("applied again: %s", out)
		}

		// The hub dies and comes back: tasks run on.
		h.Kill()
		h.Up()
		roottest.Eventually(t, "both workers are back", func() bool {
			ready := 0
			for _, n := range h.Nodes() {
				if n.State == "ready" {
					ready++
				}
			}
			return ready == 2
		})
		if again := h.Running("shop_agent", 2); again[0].ID != agents[0].ID || again[1].ID != agents[1].ID {
			t.Errorf("the tasks are others after the hub's death: %+v, %+v", agents, again)
		}

		// A change of one service replaces its tasks alone; a scaled one keeps those it has.
		h.Must(file("you", 3), "apply", "-f", "-")
		roottest.Eventually(t, "the tasks of the new version run", func() bool {
			now := h.Running("shop_agent", 2)
			return now[0].Version == 2 && now[1].Version == 2
		})
		three := h.Running("shop_pair", 3)
		kept := 0
		for _, task := range three {
			if task.ID == pair[0].ID || task.ID == pair[1].ID {
				kept++
			}
		}
		if kept != 2 {
			t.Errorf("after scaling: %+v, before %+v", three, pair)
		}

		// A drained node's tasks go elsewhere; without services nothing is left.
		h.Must("", "node", "drain", three[0].Node)
		roottest.Eventually(t, "no task is on the drained node", func() bool {
			for _, task := range h.Running("shop_pair", 3) {
				if task.Node == three[0].Node {
					return false
				}
			}
			return true
		})
		h.Must("", "node", "activate", three[0].Node)
		h.Running("shop_agent", 2)

		h.Must("name: shop\nservices: {}\n", "apply", "-f", "-")
		roottest.Eventually(t, "nothing is left", func() bool {
			if len(h.Tasks("shop_agent"))+len(h.Tasks("shop_pair")) > 0 {
				return false
			}
			for _, n := range workers {
				out, err := n.CLI("ps", "--all", "--json")
				var list []json.RawMessage
				if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) > 0 {
					return false
				}
			}
			return true
		})
		log, err := os.ReadFile(h.Dir + "/log")
		if err != nil || strings.Contains(string(log), "planted-secret") {
			t.Errorf("the hub's log has the secret, or is not there: %v", err)
		}
	})
}
