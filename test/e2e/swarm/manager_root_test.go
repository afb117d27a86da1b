package swarm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// manager is dockerd as the manager of a Swarm, on the test's machine.
type manager struct {
	*dockerd.Daemon
	dockerd.Swarm
	t    *testing.T
	home string
}

// long skips a case that is too long for CI, which runs the others with -short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make e2e-swarm runs it")
	}
}

// beside runs a case in namespaces of its own, beside other cases: most of its time it waits.
func beside(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	roottest.Run(t, body)
}

// alone runs a case in namespaces of its own while no other case runs: its times are the point.
func alone(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	roottest.Run(t, body)
}

// startManager starts one that has a Swarm and runs nothing of it itself.
func startManager(t *testing.T) *manager {
	t.Helper()
	dir, home := nodetest.DockerHome(t)
	if err := dockerd.Bridge(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, home: home}
	var err error
	if m.Daemon, err = dockerd.StartManager(dir, home); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.down)
	m.answers()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if m.Swarm, err = m.InitSwarm(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// patient makes the manager wait for a minute before it gives up a silent node, in cases that kill the agent or have
// little of a processor: by default it gives one up after 15 seconds, and its tasks with it.
func (m *manager) patient() {
	m.t.Helper()
	m.docker("swarm", "update", "--dispatcher-heartbeat", "20s")
}

// answers waits until dockerd does.
func (m *manager) answers() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), roottest.Patience())
	defer cancel()
	if err := m.Answers(ctx); err != nil {
		if why := m.Lacks(); why != "" {
			m.t.Skipf("dockerd cannot run on this kernel: %s", why)
		}
		m.t.Fatal(err)
	}
}

// kill ends dockerd as a power cut does.
func (m *manager) kill() {
	m.t.Helper()
	if err := m.Kill(); err != nil {
		m.t.Fatal(err)
	}
}

// up starts dockerd again and waits until it manages its Swarm.
func (m *manager) up() {
	m.t.Helper()
	if err := m.Restart(); err != nil {
		m.t.Fatal(err)
	}
	m.answers()
	roottest.Eventually(m.t, "the manager is the leader again", func() bool { return m.Get(m.t.Context(), "/nodes", new(json.RawMessage)) == nil })
}

// down ends it with the test, and does not wait for its own good end.
func (m *manager) down() {
	if m.t.Failed() {
		m.t.Logf("dockerd's log, its end:\n%s", m.LogTail())
	}
	if err := m.Kill(); err != nil {
		m.t.Error(err)
	}
}

// docker runs a command of docker's command line, which must succeed. It reads an object and
// writes it back: when the manager has changed it meanwhile, it is run again; so it is when a network that it
// removes has a task still, of a service that it has just removed.
func (m *manager) docker(args ...string) (out string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), roottest.Patience())
	defer cancel()
	roottest.Eventually(m.t, fmt.Sprintf("the manager takes %q", args), func() bool {
		var err error
		if out, err = m.Docker(ctx, args...); err == nil {
			return true
		}
		if !strings.Contains(err.Error(), "update out of sequence") && !strings.Contains(err.Error(), "is in use by task") {
			m.t.Fatal(err)
		}
		return false
	})
	return out
}

// create creates a service and does not wait for it. A program that does not heed SIGTERM is
// killed after a second, where args give it no other time.
func (m *manager) create(name, image string, args ...string) {
	m.t.Helper()
	all := []string{"service", "create", "--detach", "--quiet", "--no-resolve-image", "--stop-grace-period", "1s", "--name", name}
	for i, a := range args {
		if a == "--" {
			m.docker(append(append(append(all, args[:i]...), image), args[i+1:]...)...)
			return
		}
	}
	m.docker(append(append(all, args...), image)...)
}

// psTask is one line of `docker service ps`.
type psTask struct{ ID, Name, Node, DesiredState, CurrentState, Error, Ports string }

// ps lists a service's tasks, the newest of each slot first.
func (m *manager) ps(service string) (list []psTask) {
	m.t.Helper()
	for line := range strings.Lines(m.docker("service", "ps", "--no-trunc", "--format", "{{json .}}", service)) {
		var p psTask
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			m.t.Fatalf("%q: %v", line, err)
		}
		list = append(list, p)
	}
	return list
}

// eventually waits until ok accepts a service's tasks. It asks the manager's API for changes,
// because docker's command line takes longer to start than a task, and shows the command line's
// answer to ok after a change, and now and then for other conditions of ok.
func (m *manager) eventually(service, what string, ok func([]psTask) bool) (last []psTask) {
	m.t.Helper()
	defer func() {
		if m.t.Failed() {
			m.t.Logf("tasks of %s: %+v", service, last)
		}
	}()
	var seen []byte
	var shown time.Time
	roottest.Eventually(m.t, service+": "+what, func() bool {
		var now json.RawMessage
		err := m.Get(m.t.Context(), "/tasks"+dockerd.Filter("service", service), &now)
		if err == nil && bytes.Equal(now, seen) && time.Since(shown) < time.Second/4 {
			return false
		}
		last = m.ps(service)
		seen, shown = now, time.Now()
		return ok(last)
	})
	return last
}

// in counts the tasks with a state that begins so.
func in(list []psTask, state string) (n int) {
	for _, p := range list {
		if strings.HasPrefix(p.CurrentState, state) {
			n++
		}
	}
	return n
}

// running waits until n tasks of a service run, and no other.
func (m *manager) running(service string, n int) []psTask {
	m.t.Helper()
	return m.eventually(service, fmt.Sprintf("%d tasks run", n), func(l []psTask) bool { return in(l, "Running") == n })
}

// rig is a manager, a node that is to be its worker, and an image.
type rig struct {
	*manager
	t    *testing.T
	node *nodetest.Node
	ref  string // of busybox, in a registry of the test's
}

// newRig makes a rig. The lines of config go into the node's [face.swarm], or are
// sections of their own after it.
func newRig(t *testing.T, config ...string) *rig {
	t.Helper()
	return newRigWith(t, "[face.swarm]\nenabled = true\n"+strings.Join(config, "\n")+"\n")
}

// newRigWith is newRig with the node's whole configuration, which continues in the section
// [engine].
func newRigWith(t *testing.T, config string) *rig {
	t.Helper()
	m := startManager(t)
	n := nodetest.Start(t, nodetest.Options{Config: config})
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	r := &rig{manager: m, t: t, node: n, ref: imagetest.NewRegistry(t).Push("busybox", "latest", built)}
	t.Cleanup(func() {
		if _, err := n.CLI("swarm", "leave"); err != nil {
			t.Errorf("leave: %v", err)
		}
	})
	return r
}

// cli is a command of ours that must succeed.
func (r *rig) cli(args ...string) string {
	r.t.Helper()
	out, err := r.node.CLI(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// join makes the node a worker and returns its id.
func (r *rig) join() string {
	r.t.Helper()
	r.cli("swarm", "join", r.Address, "--token", r.Token)
	var s struct{ Node string }
	if err := json.Unmarshal([]byte(r.cli("swarm", "status", "--json")), &s); err != nil || s.Node == "" {
		r.t.Fatalf("status: %+v, %v", s, err)
	}
	roottest.Eventually(r.t, "the node is ready", func() bool { return r.nodeState(s.Node) == "ready" })
	return s.Node
}

// nodeState is a node's state as the manager has it.
func (r *rig) nodeState(id string) string {
	r.t.Helper()
	var n struct{ Status struct{ State string } }
	if err := r.Get(r.t.Context(), "/nodes/"+id, &n); err != nil {
		r.t.Fatal(err)
	}
	return n.Status.State
}

// container is one line of `longshore ps --json`.
type container struct {
	ID, Key, State, Owner string
	Pid                   int
}

// none waits until the node has no container any more.
func (r *rig) none() {
	r.t.Helper()
	roottest.Eventually(r.t, "nothing is left of the services", func() bool { return len(r.containers()) == 0 })
}

// containers are the node's.
func (r *rig) containers() (list []container) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.cli("ps", "--all", "--json")), &list); err != nil {
		r.t.Fatal(err)
	}
	return list
}

// write writes a file into the manager's directory.
func (m *manager) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.home, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}
