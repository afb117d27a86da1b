package swarm

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// TestDockerdJoinsOurHub: Debian's dockerd joins by the hub's token, is ready, runs a service with
// a secret and a port, goes on when the hub dies, and leaves.
func TestDockerdJoinsOurHub(t *testing.T) {
	beside(t, func(t *testing.T) {
		dir := os.Getenv(dockerd.DirEnv)
		if dir == "" {
			t.Skipf("no dockerd: set %s to the directory of the unpacked packages (hack/dockerd.sh DIR)", dockerd.DirEnv)
		}
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // a registry that dockerd trusts
		if err != nil {
			t.Fatal(err)
		}
		registry, server := imagetest.Serve(l)
		t.Cleanup(func() { _ = server.Close() })
		image := registry.Push("busybox", "latest", built)
		const workerIP = "10.99.0.2"
		if err := dockerd.Bridge(t.Context(), workerIP); err != nil {
			t.Fatal(err)
		}
		h := nodetest.StartHub(t, dockerd.ManagerIP+":4000", "--heartbeat", "1s")
		home, err := os.MkdirTemp("", "longshore-dockerd-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dockerd.RemoveHome(home); err != nil {
				t.Errorf("remove dockerd's directory: %v", err)
			}
		})
		d, err := dockerd.Start(dockerd.Options{Packages: dir, Home: home, Flags: []string{
			"--storage-driver", "vfs", "--bip", "172.31.99.1/24", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		}})
		if err != nil {
			t.Fatal(err)
		}
		m := &manager{t: t, home: home, Daemon: d}
		t.Cleanup(m.down)
		m.answers()

		join := func() {
			ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
			defer cancel()
			if _, err := m.Docker(ctx, "swarm", "join", "--advertise-addr", workerIP, "--token", h.Must("", "token"), h.Addr); err != nil {
				t.Fatal(err)
			}
		}
		ready := func() (id string) {
			roottest.Eventually(t, "dockerd is ready", func() bool {
				for _, n := range h.Nodes() {
					if n.State == "ready" && !strings.HasPrefix(n.Engine, "longshore") && n.Engine != "" {
						id = n.ID
					}
				}
				return id != ""
			})
			return id
		}
		join()
		id := ready()
		if got := m.docker("info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.NodeID}} {{.Swarm.ControlAvailable}}"); got != "active "+id+" false" {
			t.Errorf("dockerd's view: %s, node %s", got, id)
		}
		if err := os.WriteFile(h.Dir+"/key", []byte("planted-secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		file := fmt.Sprintf("name: web\nservices:\n  app:\n    image: %s\n    command: [sh, -c, 'cat /run/secrets/key; echo; exec sleep 100000']\n    stop_grace_period: 10ms\n    secrets: [key]\n"+
			"    deploy: {mode: global}\nsecrets: {key: {file: %s/key}}\n", image, h.Dir)
		h.Must(file, "apply", "-f", "-")
		first := h.Running("web_app", 1)
		roottest.Eventually(t, "its output is there", func() bool { return strings.Contains(h.Must("", "logs", "web_app"), "planted-secret") })
		if got := m.docker("ps", "--format", "{{.Label \"com.docker.swarm.task.id\"}} {{.Label \"com.docker.swarm.service.name\"}}"); got != first[0].ID+" web_app" {
			t.Errorf("dockerd's containers: %s", got)
		}
		h.Kill()
		h.Up()
		if again := ready(); again != id {
			t.Errorf("after the hub's death the node is %s, it was %s", again, id)
		}
		if now := h.Running("web_app", 1); now[0].ID != first[0].ID {
			t.Errorf("the task is another one after the hub's death: %+v, %+v", first, now)
		}
		h.Must("name: web\nservices: {}\n", "apply", "-f", "-")
		roottest.Eventually(t, "nothing runs any more", func() bool { return len(h.Tasks("web_app")) == 0 && m.docker("ps", "--quiet", "--all") == "" })
		m.docker("swarm", "leave")
		roottest.Eventually(t, "the node is down", func() bool { return len(h.Nodes()) == 1 && h.Nodes()[0].State == "down" })
		h.Must("", "node", "rm", id)
		join()
		if again := ready(); again == id {
			t.Error("a node that was removed is back")
		}
	})
}
