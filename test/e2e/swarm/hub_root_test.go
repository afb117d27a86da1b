package swarm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// workerIP is where dockerd is as a worker, in the test's own network namespace.
const workerIP = "10.99.0.2"

// otherIP is where a second hub is.
const otherIP = "10.99.0.3"

// fleet is a hub with Debian's dockerd, which is to be one of its workers, and an image.
type fleet struct {
	*manager // which manages nothing
	t        *testing.T
	hub      *nodetest.Hub
	ref      string // of busybox, in a registry of the test's
	certs    string // says how the registry is reached
}

// newFleet makes a fleet, with additional flags for its hub. No node has joined yet.
func newFleet(t *testing.T, flags ...string) *fleet {
	t.Helper()
	dir, home := nodetest.DockerHome(t)
	if err := dockerd.Bridge(t.Context(), workerIP, otherIP); err != nil {
		t.Fatal(err)
	}
	ref, certs := nodetest.ServeBusybox(t, dockerd.ManagerIP)
	f := &fleet{t: t, ref: ref, certs: certs}
	f.hub = nodetest.StartHub(t, dockerd.ManagerIP+":4000", append([]string{"--heartbeat", "1s"}, flags...)...)
	d, err := dockerd.Start(dockerd.Options{Packages: dir, Home: home, Flags: []string{
		"--storage-driver", "vfs", "--bip", "172.31.99.1/24", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--insecure-registry", dockerd.ManagerIP + "/32",
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.manager = &manager{t: t, home: home, Daemon: d}
	t.Cleanup(f.down)
	f.answers()
	return f
}

// write writes a file that only the test reads.
func (f *fleet) write(name, text string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// join has dockerd join the hub.
func (f *fleet) join() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), roottest.Patience())
	defer cancel()
	if _, err := f.Docker(ctx, "swarm", "join", "--advertise-addr", workerIP, "--token", f.hub.Must("", "token"), f.hub.Addr); err != nil {
		f.t.Fatal(err)
	}
}

// ready waits until dockerd is ready, and returns its id.
func (f *fleet) ready() (id string) {
	f.t.Helper()
	roottest.Eventually(f.t, "dockerd is ready", func() bool {
		for _, n := range f.hub.Nodes() {
			if n.State == "ready" && !strings.HasPrefix(n.Engine, "longshore") && n.Engine != "" {
				id = n.ID
			}
		}
		return id != ""
	})
	return id
}

// exchangeRoot exchanges the hub's root, and dockerd renews its certificate.
func (f *fleet) exchangeRoot() {
	f.t.Helper()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(f.home, "data/swarm/certificates", name))
		if err != nil {
			f.t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	token, before := f.hub.Must("", "token"), read("swarm-node.crt")
	f.hub.Must("", "ca", "rotate")
	roottest.Eventually(f.t, "the root is exchanged", func() bool { return f.hub.Must("", "token") != token })
	roottest.Eventually(f.t, "dockerd has the new root", func() bool { return read("swarm-root-ca.crt") == f.hub.Must("", "ca") })
	if read("swarm-node.crt") == before {
		f.t.Error("dockerd has the certificate of before")
	}
}

// show logs the services and tasks of the hub, while it runs, if the test has failed.
func (f *fleet) show() {
	if f.t.Failed() {
		services, _ := f.hub.CLI("", "services")
		tasks, _ := f.hub.CLI("", "tasks")
		f.t.Logf("the hub's services:\n%s\nand tasks:\n%s", services, tasks)
	}
}

// declare applies a stack. %[1]s in the file is the image, %[2]s the directory of the hub.
func (f *fleet) declare(file string) {
	f.t.Helper()
	f.hub.Must(fmt.Sprintf(file, f.ref, f.hub.Dir), "apply", "-f", "-")
}

// update waits until the update of a service is so.
func (f *fleet) update(service, state string) {
	f.t.Helper()
	roottest.Eventually(f.t, service+" is "+state, func() bool {
		var list []struct{ Name, Update string }
		if err := json.Unmarshal([]byte(f.hub.Must("", "services", "--json")), &list); err != nil {
			f.t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(s struct{ Name, Update string }) bool { return s.Name == service && s.Update == state })
	})
}

// TestDockerdJoinsOurHub: Debian's dockerd joins by the hub's token, is ready, runs a service with a secret, a
// config and a port of its own and one on its own network, gets another root, runs on when the hub dies, is
// drained, leaves, and joins again.
func TestDockerdJoinsOurHub(t *testing.T) {
	beside(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.show()
		f.join()
		id := f.ready()
		if got := f.docker("info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.NodeID}} {{.Swarm.ControlAvailable}}"); got != "active "+id+" false" {
			t.Errorf("dockerd's view: %s, node %s", got, id)
		}
		f.write(f.hub.Dir+"/key", "planted-secret")
		f.declare(`
name: web
services:
  app:
    image: %[1]s
    command: [sh, -c, 'mkdir /www; cat /run/secrets/key /etc/app.conf >/www/index.html; cat /www/index.html; exec httpd -f -p 80 -h /www']
    stop_grace_period: 10ms
    secrets: [key]
    configs: [{source: conf, target: /etc/app.conf}]
    ports: [{target: 80, published: "8080", mode: host}]
    deploy: {mode: global}
  hosted:
    image: %[1]s
    command: [sh, -c, 'readlink /proc/self/ns/net; exec sleep 100000']
    stop_grace_period: 10ms
    network_mode: host
    deploy: {mode: global}
secrets: {key: {file: %[2]s/key}}
configs: {conf: {content: " and a config\n"}}
`)
		first := f.hub.Running("web_app", 1)
		roottest.Eventually(t, "its output is there", func() bool { return strings.Contains(f.hub.Must("", "logs", "web_app"), "planted-secret and a config") })
		if got := f.docker("ps", "--filter", "label=com.docker.swarm.service.name=web_app", "--format", "{{.Label \"com.docker.swarm.task.id\"}} {{.Label \"com.docker.swarm.service.name\"}}"); got != first[0].ID+" web_app" {
			t.Errorf("dockerd's containers: %s", got)
		}
		roottest.Eventually(t, "its port is served", func() bool {
			return strings.Contains(get(t, "http://"+workerIP+":8080/"), "planted-secret and a config")
		})
		own, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		f.hub.Running("web_hosted", 1)
		roottest.Eventually(t, "it is on the node's network", func() bool { return f.hub.Must("", "logs", "web_hosted") == own })

		f.exchangeRoot()
		if now := f.hub.Running("web_app", 1); now[0].ID != first[0].ID {
			t.Errorf("the task is another one after the root was exchanged: %+v, %+v", first, now)
		}

		f.hub.Kill()
		f.hub.Up()
		if again := f.ready(); again != id {
			t.Errorf("after the hub's death the node is %s, it was %s", again, id)
		}
		if now := f.hub.Running("web_app", 1); now[0].ID != first[0].ID {
			t.Errorf("the task is another one after the hub's death: %+v, %+v", first, now)
		}
		f.hub.Must("", "node", "drain", id)
		roottest.Eventually(t, "nothing runs on the drained node", func() bool { return f.docker("ps", "--quiet") == "" })
		f.hub.Must("", "node", "activate", id)
		if now := f.hub.Running("web_app", 1); now[0].ID == first[0].ID {
			t.Errorf("the task of a node that was drained is back: %+v", now)
		}
		f.declare("name: web\nservices: {}\n#%[1]s%[2]s")
		roottest.Eventually(t, "nothing runs any more", func() bool {
			return len(f.hub.Tasks("web_app"))+len(f.hub.Tasks("web_hosted")) == 0 && f.docker("ps", "--quiet", "--all") == ""
		})
		f.docker("swarm", "leave")
		roottest.Eventually(t, "the node is down", func() bool { return len(f.hub.Nodes()) == 1 && f.hub.Nodes()[0].State == "down" })
		f.hub.Must("", "node", "rm", id)
		f.join()
		if again := f.ready(); again == id {
			t.Error("a node that was removed is back")
		}
	})
}

// TestWorkersOfBothKinds: three workers of ours and a dockerd have one service, which is updated
// without a moment at which all are away, is rolled back by itself and by hand, and is on the
// networks of its nodes.
func TestWorkersOfBothKinds(t *testing.T) {
	long(t)
	beside(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.show()
		f.join()
		own, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		networks := []string{own}
		var nodes []*nodetest.Node
		for i := range 3 {
			link := nodetest.Plug(t, "swarm0", fmt.Sprintf("edge%d", i), fmt.Sprintf("10.99.0.%d/24", i+10))
			n := nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", f.certs)})
			if _, err := n.CLI("swarm", "join", f.hub.Addr, "--token", f.hub.Must("", "token")); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", fmt.Sprintf("edge%d", i), "readlink", "/proc/self/ns/net").Output()
			if err != nil {
				t.Fatal(err)
			}
			networks, nodes = append(networks, strings.TrimSpace(string(out))), append(nodes, n)
		}
		f.ready()
		f.write(f.hub.Dir+"/key", "planted-secret")
		stack := func(command, more string) string {
			return `
name: mix
services:
  all:
    image: %[1]s
    command: [sh, -c, '` + command + `']
    stop_grace_period: 10ms
    secrets: [key]
    configs: [{source: conf, target: /etc/app.conf}]
    ports: [{target: 80, published: "8080", mode: host}]
    deploy:
      mode: global
      labels: {longshore.prefetch: "true"}
      restart_policy: {delay: 100ms}
      update_config: {parallelism: 2, monitor: 500ms, failure_action: rollback}
      rollback_config: {parallelism: 0, monitor: 100ms}
` + more + `
secrets: {key: {file: %[2]s/key}}
configs: {conf: {content: "config"}}
`
		}
		const serves = `mkdir /www; cat /run/secrets/key /etc/app.conf >/www/index.html; echo version >>/www/index.html; exec httpd -f -p 80 -h /www`
		served := func(what string) {
			t.Helper()
			for _, ip := range []string{workerIP, "10.99.0.10", "10.99.0.11", "10.99.0.12"} {
				roottest.Eventually(t, ip+" serves "+what, func() bool { return strings.Contains(get(t, "http://"+ip+":8080/"), "planted-secretconfig"+what) })
			}
		}
		one, two := strings.Replace(serves, "version", "one", 1), strings.Replace(serves, "version", "two", 1)
		f.declare(stack(one, ""))
		f.hub.Running("mix_all", 4)
		served("one")
		f.declare(stack(two, ""))
		f.update("mix_all", "completed")
		f.hub.Running("mix_all", 4)
		served("two")

		f.declare(stack("sleep 0.1; exit 3", ""))
		f.update("mix_all", "rolled back")
		f.hub.Running("mix_all", 4)
		served("two")
		f.declare(stack(one, `
  hosted:
    image: %[1]s
    command: [sh, -c, "readlink /proc/self/ns/net; exec sleep 100000"]
    stop_grace_period: 10ms
    network_mode: host
    deploy: {replicas: 4}
`))
		f.update("mix_all", "completed")
		f.hub.Must("", "rollback", "mix_all")
		f.update("mix_all", "rolled back")
		served("two")
		f.hub.Running("mix_hosted", 4)
		roottest.Eventually(t, "each node's own network", func() bool {
			got := strings.Fields(f.hub.Must("", "logs", "mix_hosted"))
			slices.Sort(got)
			slices.Sort(networks)
			return slices.Equal(got, networks)
		})
		f.declare("name: mix\nservices: {}\n#%[1]s%[2]s")
		roottest.Eventually(t, "nothing is left", func() bool {
			return len(f.hub.Tasks("mix_all"))+len(f.hub.Tasks("mix_hosted")) == 0 && f.docker("ps", "--quiet", "--all") == ""
		})
		for _, n := range nodes {
			roottest.Eventually(t, "nor on our nodes", func() bool {
				out, err := n.CLI("ps", "--all", "-q")
				return err == nil && out == ""
			})
			n.Check()
		}
	})
}
