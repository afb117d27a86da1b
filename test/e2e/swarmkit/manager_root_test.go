package swarmkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/swarmkit/v2/agent/exec"
	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/log"
	"github.com/moby/swarmkit/v2/manager/allocator/networkallocator"
	swarmnode "github.com/moby/swarmkit/v2/node"
	"github.com/moby/swarmkit/v2/node/plugin"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// managerAddr is where the manager listens, on the bridge swarm0 of the test's own
// network.
const managerAddr = dockerd.ManagerIP + ":2377"

// idle is the executor of the manager's own node, which is drained.
type idle struct{}

func (idle) Describe(context.Context) (*api.NodeDescription, error) {
	return &api.NodeDescription{Hostname: "manager", Platform: &api.Platform{Architecture: "x86_64", OS: "linux"}, Engine: &api.EngineDescription{}, Resources: &api.Resources{}}, nil
}
func (idle) Configure(context.Context, *api.Node) error         { return nil }
func (idle) SetNetworkBootstrapKeys([]*api.EncryptionKey) error { return nil }
func (idle) Controller(*api.Task) (exec.Controller, error)      { return nil, errors.New("it runs nothing") }

// plugins are those of the manager: drivers of cluster volumes, the sockets by their names.
type plugins map[string]string

type driver struct{ name, socket string }

func (d driver) Name() string               { return d.name }
func (d driver) ScopedPath(p string) string { return p }
func (d driver) Client() plugin.Client      { return nil }
func (d driver) Addr() net.Addr             { return &net.UnixAddr{Name: d.socket, Net: "unix"} }

func (p plugins) Get(name, _ string) (plugin.Plugin, error) {
	if p[name] == "" {
		return nil, errors.New("no such plugin")
	}
	return driver{name, p[name]}, nil
}

func (p plugins) GetAllManagedPluginsByCap(string) (list []plugin.Plugin) {
	for name, socket := range p {
		list = append(list, driver{name, socket})
	}
	return list
}

// beside runs a case in namespaces of its own, beside other cases: most of its time it waits.
func beside(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	roottest.Run(t, body)
}

// options say how a rig is to be.
type options struct {
	drivers plugins // of cluster volumes, which the manager and the node have
	engine  string  // lines of the node's [engine]
	face    string  // lines of the node's [face.swarm]
	// overlays has the manager allocate overlay networks, and the node on a machine of its own: others have
	// members of the gossip where the manager is.
	overlays bool
}

// nodeAddr is where a node on a machine of its own is.
const nodeAddr = "10.99.0.11"

// rig is a manager with a Swarm, and a node that is its worker.
type rig struct {
	api.ControlClient
	logs api.LogsClient
	t    *testing.T
	node *nodetest.Node
	id   string // the node's in the Swarm
	ref  string // of busybox, in a registry of the test's
	m    *swarmnode.Node
}

// newRig makes one, and joins the node.
func newRig(t *testing.T, o options) *rig {
	t.Helper()
	nodetest.Lines(t, "ip", "link", "add", "swarm0", "type", "bridge")
	nodetest.Lines(t, "ip", "address", "add", "10.99.0.1/24", "dev", "swarm0")
	nodetest.Lines(t, "ip", "link", "set", "swarm0", "up")
	dir, err := os.MkdirTemp("", "longshore-swarmkit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	keepLog(t, filepath.Join(dir, "log"))
	var provider networkallocator.Provider = networks{}
	if o.overlays {
		provider = overlays{}
	}
	m, err := swarmnode.New(&swarmnode.Config{
		Hostname: "manager", StateDir: dir, ListenControlAPI: filepath.Join(dir, "control.sock"), ListenRemoteAPI: managerAddr, AdvertiseRemoteAPI: managerAddr,
		Executor: idle{}, ElectionTick: 10, HeartbeatTick: 1, Availability: api.NodeAvailabilityDrain, PluginGetter: o.drivers, NetworkProvider: provider,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
		defer cancel()
		_ = m.Stop(ctx)
	})
	r := &rig{t: t, m: m}
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	select {
	case <-m.Ready():
	case <-ctx.Done():
		t.Fatal("the manager is never ready")
	}
	for conn := range m.ListenControlSocket(ctx) {
		if conn != nil {
			r.ControlClient, r.logs = api.NewControlClient(conn), api.NewLogsClient(conn)
			break
		}
	}
	if r.ControlClient == nil {
		t.Fatal("the manager has no control API")
	}
	config := o.engine + "\n[face.swarm]\nenabled = true\n" + o.face + "\n[face.swarm.csi]\n"
	for name, socket := range o.drivers {
		config += `"` + name + `" = "` + socket + "\"\n"
	}
	var certs string
	r.ref, certs = nodetest.ServeBusybox(t, dockerd.ManagerIP)
	where := nodetest.Options{Config: fmt.Sprintf("%s[images]\nregistry_config = [%q]\n", config, certs)}
	if o.overlays {
		where.NetNS = nodetest.Plug(t, "swarm0", "ours0", nodeAddr+"/24").NetNS()
	}
	r.node = nodetest.Start(t, where)
	t.Cleanup(func() {
		if _, err := r.node.CLI("swarm", "leave"); err != nil {
			t.Errorf("leave: %v", err)
		}
	})
	r.join()
	return r
}

// join makes the node a worker.
func (r *rig) join() {
	r.t.Helper()
	r.cli("swarm", "join", managerAddr, "--token", r.cluster().RootCA.JoinTokens.Worker)
	r.id = r.status().Node
	r.until("the node is ready", func() bool { return r.self().Status.State == api.NodeStatus_READY })
}

// keepLog writes the manager's log to a file. A test that fails shows its end.
func keepLog(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	log.L.Logger.SetOutput(f)
	t.Cleanup(func() {
		if text, err := os.ReadFile(name); t.Failed() && err == nil {
			t.Logf("the manager's log, its end:\n%s", text[max(0, len(text)-8000):])
		}
	})
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

// status returns the node's membership, as the node reports it.
func (r *rig) status() (s struct{ Node, Session, Certificate string }) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.cli("swarm", "status", "--json")), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// until waits until ok.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	roottest.Eventually(r.t, what, ok)
}

func (r *rig) cluster() *api.Cluster {
	r.t.Helper()
	resp, err := r.ListClusters(r.t.Context(), &api.ListClustersRequest{})
	if err != nil || len(resp.Clusters) != 1 {
		r.t.Fatalf("clusters: %v, %v", resp, err)
	}
	return resp.Clusters[0]
}

// updateCluster changes the Swarm's settings.
func (r *rig) updateCluster(fn func(*api.ClusterSpec)) {
	r.t.Helper()
	r.until("the cluster is changed", func() bool {
		c := r.cluster()
		fn(&c.Spec)
		_, err := r.UpdateCluster(r.t.Context(), &api.UpdateClusterRequest{ClusterID: c.ID, ClusterVersion: &c.Meta.Version, Spec: &c.Spec})
		if err != nil && !strings.Contains(err.Error(), "out of sequence") {
			r.t.Fatalf("update the cluster: %v", err)
		}
		return err == nil
	})
}

// self is the node as the manager has it.
func (r *rig) self() *api.Node {
	r.t.Helper()
	resp, err := r.GetNode(r.t.Context(), &api.GetNodeRequest{NodeID: r.id})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Node
}

// create creates a service of busybox.
func (r *rig) create(name string, replicas uint64, set func(*api.ServiceSpec, *api.ContainerSpec), command ...string) string {
	r.t.Helper()
	container := &api.ContainerSpec{Image: r.ref, Args: command}
	spec := &api.ServiceSpec{
		Annotations: api.Annotations{Name: name}, Task: api.TaskSpec{Runtime: &api.TaskSpec_Container{Container: container}},
		Mode: &api.ServiceSpec_Replicated{Replicated: &api.ReplicatedService{Replicas: replicas}},
	}
	if set != nil {
		set(spec, container)
	}
	resp, err := r.CreateService(r.t.Context(), &api.CreateServiceRequest{Spec: spec})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Service.ID
}

// update changes a service.
func (r *rig) update(id string, rollback api.UpdateServiceRequest_Rollback, fn func(*api.ServiceSpec)) {
	r.t.Helper()
	r.until("the service is changed", func() bool {
		resp, err := r.GetService(r.t.Context(), &api.GetServiceRequest{ServiceID: id})
		if err != nil {
			r.t.Fatal(err)
		}
		s := resp.Service
		fn(&s.Spec)
		_, err = r.UpdateService(r.t.Context(), &api.UpdateServiceRequest{ServiceID: id, ServiceVersion: &s.Meta.Version, Spec: &s.Spec, Rollback: rollback})
		if err != nil && !strings.Contains(err.Error(), "out of sequence") {
			r.t.Fatalf("update service %s: %v", id, err)
		}
		return err == nil
	})
}

func (r *rig) scale(id string, n uint64) {
	r.t.Helper()
	r.update(id, api.UpdateServiceRequest_NONE, func(s *api.ServiceSpec) { s.GetReplicated().Replicas = n })
}

func (r *rig) removeService(id string) {
	r.t.Helper()
	if _, err := r.RemoveService(r.t.Context(), &api.RemoveServiceRequest{ServiceID: id}); err != nil {
		r.t.Fatal(err)
	}
}

// tasks are those of a service.
func (r *rig) tasks(service string) []*api.Task {
	r.t.Helper()
	resp, err := r.ListTasks(r.t.Context(), &api.ListTasksRequest{Filters: &api.ListTasksRequest_Filters{ServiceIDs: []string{service}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Tasks
}

// in waits until n tasks of a service, and no more, are in a state.
func (r *rig) in(service string, state api.TaskState, n int) (found []*api.Task) {
	r.t.Helper()
	var all []*api.Task
	defer func() {
		if r.t.Failed() {
			for _, t := range all {
				r.t.Logf("task %s: desired %s, %s: %s %s", t.ID, t.DesiredState, t.Status.State, t.Status.Message, t.Status.Err)
			}
		}
	}()
	r.until("tasks are "+state.String(), func() bool {
		found, all = nil, r.tasks(service)
		for _, t := range all {
			if t.Status.State == state {
				found = append(found, t)
			}
		}
		return len(found) == n
	})
	return found
}

// pids are those of the containers that run, by their tasks.
func (r *rig) pids() map[string]int {
	r.t.Helper()
	var list []struct {
		Key, State string
		Pid        int
	}
	if err := json.Unmarshal([]byte(r.cli("ps", "--all", "--json")), &list); err != nil {
		r.t.Fatal(err)
	}
	all := map[string]int{}
	for _, c := range list {
		if c.State == "running" {
			all[c.Key] = c.Pid
		}
	}
	return all
}

// container is the id of a task's container, "" when it has none.
func (r *rig) container(task string) string {
	r.t.Helper()
	var list []struct{ Key, ID string }
	if err := json.Unmarshal([]byte(r.cli("ps", "--all", "--json")), &list); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range list {
		if c.Key == task {
			return c.ID
		}
	}
	return ""
}

// said returns the output of a task's container.
func (r *rig) said(task string) string {
	r.t.Helper()
	if id := r.container(task); id != "" {
		return r.cli("logs", id)
	}
	return ""
}

// none waits until nothing of the services is left, and looks whether the records agree.
func (r *rig) none() {
	r.t.Helper()
	r.until("nothing is left", func() bool { return r.cli("ps", "--all", "-q") == "" })
	r.node.Check()
}
