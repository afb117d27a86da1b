package swarm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// managerIP is where the manager and the registry are, on the bridge swarm0 of the test's own
// network namespace.
const managerIP = "10.98.0.1"

// cluster is a manager of the tests' own with its workers, each in a network namespace of its own.
type cluster struct {
	*swarmtest.Manager
	t       *testing.T
	ref     string // of busybox
	workers []*worker
}

// worker is a node of a cluster.
type worker struct {
	*nodetest.Node
	*nodetest.Link
	t  *testing.T
	id string // in the swarm
}

func newCluster(t *testing.T, workers int) *cluster {
	t.Helper()
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	nodetest.Bridge(t, "swarm0", managerIP+"/24")
	c := &cluster{Manager: swarmtest.NewAt(t, managerIP+":0"), t: t}
	c.Period = 500 * time.Millisecond
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", managerIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	c.ref = registry.Push("busybox", "latest", built)
	certs := t.TempDir()
	if err := os.Mkdir(filepath.Join(certs, registry.Host), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, registry.Host, "hosts.toml"), []byte("server = \"http://"+registry.Host+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range workers {
		link := nodetest.Plug(t, "swarm0", fmt.Sprintf("worker%d", i), fmt.Sprintf("10.98.0.%d/24", i+2))
		n := nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", certs)})
		w := &worker{Node: n, Link: link, t: t}
		w.cli("swarm", "join", c.Addr, "--token", c.Token)
		var s struct{ Node string }
		if err := json.Unmarshal([]byte(w.cli("swarm", "status", "--json")), &s); err != nil || s.Node == "" {
			t.Fatalf("status: %+v, %v", s, err)
		}
		w.id = s.Node
		c.workers = append(c.workers, w)
	}
	return c
}

// sleeps is the script of tasks that run until they are stopped.
const sleeps = "exec sleep 1000"

// task is one of a worker's that runs a shell's command line.
func (c *cluster) task(w *worker, id, command string, condition swarmv1.RestartPolicy_RestartCondition, change ...func(*swarmv1.RestartPolicy)) *swarmv1.Task {
	t := swarmtest.Task(id, c.ref, "sh", "-c", command)
	t.NodeId = w.id
	t.GetSpec().GetContainer().StopGracePeriod = durationpb.New(time.Millisecond) // a shell that is process 1 heeds no SIGTERM
	t.GetSpec().Restart = &swarmv1.RestartPolicy{Condition: condition, Delay: durationpb.New(time.Millisecond)}
	for _, fn := range change {
		fn(t.GetSpec().GetRestart())
	}
	return t
}

// The conditions of restarts.
const (
	never     = swarmv1.RestartPolicy_NONE
	onFailure = swarmv1.RestartPolicy_ON_FAILURE
	always    = swarmv1.RestartPolicy_ANY
)

// at most so many restarts within a time.
func most(n uint64, window time.Duration) func(*swarmv1.RestartPolicy) {
	return func(p *swarmv1.RestartPolicy) { p.MaxAttempts, p.Window = n, durationpb.New(window) }
}

// told is the last status of a task at the manager.
func (c *cluster) told(task string) *swarmv1.TaskStatus {
	list := c.Statuses(task)
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// tells waits until the manager hears that a task runs in a container.
func (c *cluster) tells(task, container string) (s *swarmv1.TaskStatus) {
	c.t.Helper()
	c.Until(task+" is told to run in "+container, func() bool {
		s = c.told(task)
		return s.GetState() == swarmv1.TaskState_RUNNING && s.GetContainer().GetContainerId() == container
	})
	return s
}

// rises asserts that the states of a task at the manager never go down.
func (c *cluster) rises(task string) {
	c.t.Helper()
	before := swarmv1.TaskState_NEW
	for _, s := range c.Statuses(task) {
		if s.GetState() < before {
			c.t.Errorf("%s: %s after %s", task, s.GetState(), before)
		}
		before = s.GetState()
	}
}

// cli is a command of ours that must succeed.
func (w *worker) cli(args ...string) string {
	w.t.Helper()
	out, err := w.CLI(args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// container is one line of `longshore ps --json`.
type container struct {
	ID, Key, State string
	Pid            int
}

// containers are those of the worker's tasks.
func (w *worker) containers() map[string]container {
	w.t.Helper()
	var list []container
	if err := json.Unmarshal([]byte(w.cli("ps", "--all", "--json")), &list); err != nil {
		w.t.Fatal(err)
	}
	all := map[string]container{}
	for _, c := range list {
		if _, twice := all[c.Key]; twice {
			w.t.Errorf("task %s has two containers", c.Key)
		}
		all[c.Key] = c
	}
	return all
}

// kill ends the program of a task that runs.
func (w *worker) kill(task string) {
	w.t.Helper()
	c := w.containers()[task]
	if c.State != "running" || c.Pid == 0 {
		w.t.Fatalf("task %s does not run: %+v", task, c)
	}
	if err := syscall.Kill(c.Pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
}

// event is one line of `longshore events --json`.
type event struct {
	At        time.Time
	Kind, Key string
}

// happens waits for the nth event of a kind in the whole life of a task.
func (w *worker) happens(task, kind string, n int) (e event) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(nodetest.Bin(w.t), "longshore"), "events", "--since", "0", "--json", "--kind", kind)
	cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(w.State, "control.sock"))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		e = event{}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.t.Fatalf("%s: %v", lines.Text(), err)
		}
		if e.Key == task {
			n--
		}
		if n == 0 {
			return e
		}
	}
	w.t.Fatalf("task %s: %d more of %s do not come", task, n, kind)
	return e
}

// starts waits until a task's program was started so often since the node was made.
func (w *worker) starts(task string, n int) event {
	w.t.Helper()
	return w.happens(task, "container.started", n)
}
