package swarm_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// published is a task that publishes ports on the node.
func published(id string, ports ...*swarmv1.PortConfig) *swarmv1.Task {
	task := swarmtest.Task(id, image, "sleep")
	for _, p := range ports {
		p.PublishMode = swarmv1.PortConfig_HOST
	}
	task.Endpoint = &swarmv1.Endpoint{Ports: ports}
	return task
}

// TestTheNodeChoosesAPort that no other task has, and tells it; an agent that comes later does
// the same.
func TestTheNodeChoosesAPort(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(published("a", &swarmv1.PortConfig{Name: "web", TargetPort: 80}, &swarmv1.PortConfig{TargetPort: 53, PublishedPort: 8053, Protocol: swarmv1.PortConfig_UDP}, &swarmv1.PortConfig{TargetPort: 80}))
	r.Assign(published("b", &swarmv1.PortConfig{TargetPort: 80}))
	seen := map[uint32]bool{}
	told := func(id string) []*swarmv1.PortConfig {
		return r.Reaches(id, swarmv1.TaskState_RUNNING).GetPortStatus().GetPorts()
	}
	a, b := told("a"), told("b")
	if len(a) != 3 || len(b) != 1 || a[0].GetName() != "web" || a[1].GetPublishedPort() != 8053 {
		t.Fatalf("told %v and %v", a, b)
	}
	for _, p := range []*swarmv1.PortConfig{a[0], a[2], b[0]} {
		if n := p.GetPublishedPort(); n == 0 || seen[n] || p.GetTargetPort() != 80 || p.GetPublishMode() != swarmv1.PortConfig_HOST {
			t.Errorf("told %v", p)
		}
		seen[p.GetPublishedPort()] = true
	}
	sb, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), "b")
	if err != nil || len(sb.Network.Ports) != 1 || uint32(sb.Network.Ports[0].Host) != b[0].GetPublishedPort() {
		t.Errorf("%v is told, and the sandbox has %v, %v", b, sb.Network.Ports, err)
	}
	r.down()
	before := len(r.Statuses("b"))
	r.start()
	r.Until("the status is told again", func() bool { return len(r.Statuses("b")) > before })
	if again := told("b"); len(again) != 1 || again[0].GetPublishedPort() != b[0].GetPublishedPort() {
		t.Errorf("told again: %v, before %v", again, b)
	}
	r.Want("b", swarmv1.TaskState_SHUTDOWN)
	if s := r.Reaches("b", swarmv1.TaskState_SHUTDOWN); s.GetPortStatus() != nil {
		t.Errorf("after its end: %v", s)
	}
}

// TestPortsOfTheNodesNetwork: a task on it has its ports by itself, and the node reports none, as
// dockerd does.
func TestPortsOfTheNodesNetwork(t *testing.T) {
	r := newRig(t)
	r.join()
	task := published("a", &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 8080}, &swarmv1.PortConfig{TargetPort: 81})
	task.Networks = []*swarmv1.NetworkAttachment{{Network: &swarmv1.Network{Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: "host"}, DriverConfig: &swarmv1.Driver{Name: "host"}}}}}
	r.Assign(task)
	if s := r.Reaches("a", swarmv1.TaskState_RUNNING); s.GetPortStatus() != nil {
		t.Errorf("told %v", s.GetPortStatus())
	}
}

// TestWhatComesAllTheSame: a task beyond the node's abilities is rejected with the cause, and
// nothing is made for it.
func TestWhatComesAllTheSame(t *testing.T) {
	r := newRig(t)
	r.join()
	ingress := swarmtest.Task("", image, "sleep")
	ingress.Networks = []*swarmv1.NetworkAttachment{{Network: &swarmv1.Network{Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: "ingress"}, Ingress: true}}}}
	ingress.Endpoint = &swarmv1.Endpoint{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080}}}
	attachment := &swarmv1.Task{DesiredState: swarmv1.TaskState_RUNNING, Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Attachment{Attachment: &swarmv1.NetworkAttachmentSpec{ContainerId: "x"}}}}
	generic := &swarmv1.Task{DesiredState: swarmv1.TaskState_RUNNING, Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Generic{Generic: &swarmv1.GenericRuntimeSpec{Kind: "wasm"}}}}
	for text, task := range map[string]*swarmv1.Task{
		"overlay network ingress": ingress, "attaching": attachment, `"wasm"`: generic,
		"port 80/tcp is published twice":   published("", &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 80}, &swarmv1.PortConfig{TargetPort: 81, PublishedPort: 80}),
		"generic resource gpu=v.com/gpu=0": with("", "gpu", "v.com/gpu=0"),
	} {
		task.Id = text
		r.Assign(task)
		if s := r.Reaches(text, swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), text) {
			t.Errorf("%s: %v", text, s)
		}
		if _, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), core.Key(text)); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestAPortThatTheTaskBeforeHas: a task that is only to be ready has its image, and takes the port
// when it is to start, after the other has released it.
func TestAPortThatTheTaskBeforeHas(t *testing.T) {
	r := newRig(t)
	r.join()
	port := func() *swarmv1.PortConfig { return &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 8080} }
	r.Assign(published("a", port()))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	next := published("b", port())
	next.DesiredState = swarmv1.TaskState_READY
	r.Assign(next)
	r.Reaches("b", swarmv1.TaskState_READY)
	if _, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), "b"); !errdefs.IsNotFound(err) {
		t.Errorf("while the other runs it has a sandbox: %v", err)
	}
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)
	r.Want("b", swarmv1.TaskState_RUNNING)
	if s := r.Reaches("b", swarmv1.TaskState_RUNNING); len(s.GetPortStatus().GetPorts()) != 1 || s.GetContainer().GetContainerId() == "" {
		t.Errorf("told %v", s)
	}
	never := published("c", &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 8081})
	never.DesiredState = swarmv1.TaskState_READY
	r.Assign(never)
	r.Reaches("c", swarmv1.TaskState_READY)
	r.Want("c", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("c", swarmv1.TaskState_SHUTDOWN)

	missing := published("d", &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 8082})
	missing.DesiredState, missing.GetSpec().GetContainer().Image = swarmv1.TaskState_READY, "registry.example/missing"
	r.Assign(missing)
	r.Reaches("d", swarmv1.TaskState_REJECTED)
}
