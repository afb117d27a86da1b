package swarm_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// equipped is a node with two GPUs and labels, which publishes ports of the swarm by itself.
func equipped() swarm.Config {
	return swarm.Config{
		CPUs: 2.5, MemoryBytes: 1 << 30, Labels: map[string]string{"disk": "ssd"}, Ingress: swarm.IngressHost,
		GenericResources: map[string][]string{"gpu": {"v.com/gpu=0", "v.com/gpu=1"}, "nic": {"v.com/nic=0"}},
		GenericCounts:    map[string]int64{"seats": 3, "ports": 1},
	}
}

// with is a task with assigned devices.
func with(id, kind string, devices ...string) *swarmv1.Task {
	task := swarmtest.Task(id, image, "sleep")
	for _, d := range devices {
		task.AssignedGenericResources = append(task.AssignedGenericResources, &swarmv1.GenericResource{
			Resource: &swarmv1.GenericResource_NamedResourceSpec{NamedResourceSpec: &swarmv1.NamedGenericResource{Kind: kind, Value: d}},
		})
	}
	return task
}

func TestTheNodeSaysWhatItIsToldToSay(t *testing.T) {
	r := newRigWith(t, equipped())
	r.join()
	d := r.Described()
	var devices []string
	for _, g := range d.GetResources().GetGeneric() {
		if n := g.GetDiscreteResourceSpec(); n != nil {
			devices = append(devices, fmt.Sprint(n.GetKind(), " ", n.GetValue()))
			continue
		}
		devices = append(devices, g.GetNamedResourceSpec().GetKind()+" "+g.GetNamedResourceSpec().GetValue())
	}
	if want := []string{"gpu v.com/gpu=0", "gpu v.com/gpu=1", "nic v.com/nic=0", "ports 1", "seats 3"}; !slices.Equal(devices, want) {
		t.Errorf("devices %q, want %q", devices, want)
	}
	if res := d.GetResources(); res.GetNanoCpus() != 2_500_000_000 || res.GetMemoryBytes() != 1<<30 || d.GetEngine().GetLabels()["disk"] != "ssd" {
		t.Errorf("%v", d)
	}
	if !slices.ContainsFunc(d.GetEngine().GetPlugins(), func(p *swarmv1.PluginDescription) bool {
		return p.GetType() == "Network" && p.GetName() == "overlay"
	}) {
		t.Error("no overlay, and so no ports of the whole swarm")
	}
}

// TestADeviceIsOneTasks: a task has its assigned devices, and no other has them before its end,
// even by the managers' order, also after the agent's death.
func TestADeviceIsOneTasks(t *testing.T) {
	r := newRigWith(t, equipped())
	r.join()
	r.Assign(with("a", "gpu", "v.com/gpu=1"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if got := r.container("a").Config.CDI; !slices.Equal(got, []string{"v.com/gpu=1"}) {
		t.Errorf("devices %q", got)
	}
	r.Assign(with("b", "gpu", "v.com/gpu=0", "v.com/gpu=1"))
	if s := r.Reaches("b", swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), "device v.com/gpu=1 is still task a's") {
		t.Errorf("two have it: %v", s)
	}
	r.down()
	r.start()
	r.Assign(with("c", "gpu", "v.com/gpu=1"))
	r.Reaches("c", swarmv1.TaskState_REJECTED)
	r.Assign(with("d", "gpu", "v.com/gpu=0")) // which b did not keep
	r.Reaches("d", swarmv1.TaskState_RUNNING)

	// A task waits for its ending predecessor.
	a := core.Ref{Container: r.container("a").ID}
	r.Supervisor.Ignore(a, int(syscall.SIGTERM))
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Assign(with("e", "gpu", "v.com/gpu=1"))
	r.Reaches("e", swarmv1.TaskState_PREPARING)
	r.Supervisor.Exit(a, 0)
	if s := r.Reaches("e", swarmv1.TaskState_RUNNING); s == nil || slices.ContainsFunc(r.Statuses("e"), func(s *swarmv1.TaskStatus) bool { return s.GetState() == swarmv1.TaskState_REJECTED }) {
		t.Errorf("%v", r.Statuses("e"))
	}
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)

	for _, x := range []struct{ id, kind, device, says string }{{"f", "gpu", "v.com/gpu=7", "v.com/gpu=7"}, {"g", "tpu", "v.com/gpu=0", "tpu"}} {
		r.Assign(with(x.id, x.kind, x.device))
		if s := r.Reaches(x.id, swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), x.says) {
			t.Errorf("a device that is none: %v", s)
		}
	}
}

// TestAPortOfTheTaskBefore is waited for while that task is ending, and a reason to reject the
// task while it is not.
func TestAPortOfTheTaskBefore(t *testing.T) {
	r := newRigWith(t, equipped())
	r.join()
	whole := func(id string) *swarmv1.Task {
		task := swarmtest.Task(id, image, "sleep")
		task.Networks = []*swarmv1.NetworkAttachment{{Network: &swarmv1.Network{Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: "ingress"}, Ingress: true}, DriverState: &swarmv1.Driver{Name: "overlay"}}}}
		task.Endpoint = &swarmv1.Endpoint{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 30000}}}
		return task
	}
	r.Assign(whole("a"))
	if s := r.Reaches("a", swarmv1.TaskState_RUNNING); s.GetPortStatus() != nil {
		t.Errorf("a port of the whole swarm is told as one of the node: %v", s)
	}
	sb, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), "a")
	if err != nil || len(sb.Network.Ports) != 1 || sb.Network.Ports[0].Host != 30000 {
		t.Errorf("%+v, %v", sb.Network, err)
	}
	r.Assign(whole("b"))
	if s := r.Reaches("b", swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), "30000") {
		t.Errorf("%v", s)
	}
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Assign(whole("c"))
	r.Reaches("c", swarmv1.TaskState_RUNNING)
}

func TestConfigIsChecked(t *testing.T) {
	if err := equipped().Validate(); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*swarm.Config){
		"ingress":     func(c *swarm.Config) { c.Ingress = "web" },
		"no name":     func(c *swarm.Config) { c.Labels = map[string]string{"": "x"} },
		`"g=u"`:       func(c *swarm.Config) { c.GenericResources = map[string][]string{"g=u": {"v.com/gpu=0"}} },
		"vendor.com/": func(c *swarm.Config) { c.GenericResources = map[string][]string{"gpu": {"nvidia0"}} },
		"listed twice": func(c *swarm.Config) {
			c.GenericResources = map[string][]string{"gpu": {"v.com/gpu=0"}, "tpu": {"v.com/gpu=0"}}
		},
		`"s t"`:           func(c *swarm.Config) { c.GenericCounts = map[string]int64{"s t": 1} },
		"gpu has devices": func(c *swarm.Config) { c.GenericCounts = map[string]int64{"gpu": 1} },
		"seats = 0":       func(c *swarm.Config) { c.GenericCounts = map[string]int64{"seats": 0} },
		"memory_bytes":    func(c *swarm.Config) { c.MemoryBytes = -1 },
	} {
		c := equipped()
		change(&c)
		if err := c.Validate(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
