package view

import (
	"net/netip"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
)

func testNode() Node {
	shares, limit := uint64(512), int64(64<<20)
	own := core.Sandbox{Meta: core.Meta{ID: "s1", Owner: core.OwnerMesos, Key: "a"}, State: core.SandboxReady}
	own.Config.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{Limit: &limit}}
	pod := core.Sandbox{Meta: core.Meta{ID: "s2", Owner: core.OwnerCRI, Key: "pod", Labels: map[string]string{"b": "2", "a": "1"}}, State: core.SandboxReady}
	pod.Network.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	ended := core.Sandbox{Meta: core.Meta{ID: "s3", Owner: core.OwnerMesos, Key: "e"}, State: core.SandboxReady}
	stopped := core.Sandbox{Meta: core.Meta{ID: "s4", Owner: core.OwnerNomad, Key: "n"}, State: core.SandboxStopped}
	root := core.Container{Meta: core.Meta{ID: "c1", Owner: core.OwnerMesos, Key: "a"}, Sandbox: "s1", State: core.ContainerRunning}
	root.Main.Pid, root.Main.Started = 77, time.Unix(5, 5e8)
	nested := core.Container{Meta: core.Meta{ID: "c2", Owner: core.OwnerMesos, Key: "a.b", Created: time.Unix(1, 0)}, Sandbox: "s1", Parent: "c1", State: core.ContainerRunning}
	of := core.Container{Meta: core.Meta{ID: "c3", Owner: core.OwnerCRI, Key: "pod/c"}, Sandbox: "s2", State: core.ContainerCreated}
	over := core.Container{Meta: core.Meta{ID: "c4", Owner: core.OwnerMesos, Key: "e"}, Sandbox: "s3", State: core.ContainerExited}
	over.Main.Autopsy = &core.Autopsy{Exit: core.Exit{Signal: 9}, OOM: &core.OOM{}, Verdict: "too much"}
	late := core.Container{Meta: core.Meta{ID: "c5", Owner: core.OwnerCRI}, Sandbox: "unknown"}
	return Node{Agent: "host", Sandboxes: []core.Sandbox{own, pod, ended, stopped}, Containers: []core.Container{over, of, nested, root, late}}
}

func TestOwnersAreFrameworks(t *testing.T) {
	list := testNode().Frameworks().GetFrameworks()
	if len(list) != 3 || list[0].GetFrameworkInfo().GetId().GetValue() != "cri" || list[1].GetFrameworkInfo().GetName() != "mesos" || list[2].GetFrameworkInfo().GetName() != "nomad" {
		t.Errorf("%v", list)
	}
}

func TestSandboxesAreExecutors(t *testing.T) {
	r := testNode().Executors()
	if len(r.GetExecutors()) != 2 || len(r.GetCompletedExecutors()) != 2 {
		t.Fatalf("%v", r)
	}
	pod, own := r.GetExecutors()[0].GetExecutorInfo(), r.GetExecutors()[1].GetExecutorInfo()
	if pod.GetExecutorId().GetValue() != "s2" || pod.GetName() != "pod" || pod.GetFrameworkId().GetValue() != "cri" || pod.GetLabels().GetLabels()[0].GetKey() != "a" {
		t.Errorf("%v", pod)
	}
	if own.GetExecutorId().GetValue() != "a" || own.GetResources()[0].GetScalar().GetValue() != 0.5 || own.GetResources()[1].GetScalar().GetValue() != 64 {
		t.Errorf("%v", own)
	}
	if got := r.GetCompletedExecutors()[0].GetExecutorInfo().GetExecutorId().GetValue(); got != "e" {
		t.Errorf("an executor whose container has ended: %s", got)
	}
}

func TestContainersAreTasks(t *testing.T) {
	r := testNode().Tasks()
	if len(r.GetLaunchedTasks()) != 3 || len(r.GetCompletedTasks()) != 1 {
		t.Fatalf("%v", r)
	}
	of, root, nested := r.GetLaunchedTasks()[0], r.GetLaunchedTasks()[1], r.GetLaunchedTasks()[2]
	if of.GetTaskId().GetValue() != "c3" || of.GetName() != "pod/c" || of.GetExecutorId().GetValue() != "s2" || of.GetState() != mesosv1.TaskState_TASK_STARTING {
		t.Errorf("another owner's: %v", of)
	}
	if ip := of.GetStatuses()[0].GetContainerStatus().GetNetworkInfos()[0].GetIpAddresses()[0].GetIpAddress(); ip != "10.0.0.2" {
		t.Errorf("address %s", ip)
	}
	st := root.GetStatuses()[0]
	if root.GetTaskId().GetValue() != "a" || st.GetTimestamp() != 5.5 || st.GetContainerStatus().GetExecutorPid() != 77 || root.GetAgentId().GetValue() != "host" || len(root.GetResources()) != 2 {
		t.Errorf("a standalone one: %v", root)
	}
	if id := nested.GetStatuses()[0].GetContainerStatus().GetContainerId(); id.GetValue() != "b" || id.GetParent().GetValue() != "a" || len(nested.GetResources()) != 0 {
		t.Errorf("a nested one: %v", nested)
	}
	over := r.GetCompletedTasks()[0]
	if over.GetState() != mesosv1.TaskState_TASK_FAILED || over.GetStatuses()[0].GetReason() != mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_MEMORY || over.GetStatuses()[0].GetMessage() != "too much" {
		t.Errorf("an ended one: %v", over)
	}
}

func TestStates(t *testing.T) {
	for _, c := range []struct {
		a    *core.Autopsy
		want mesosv1.TaskState
	}{
		{nil, mesosv1.TaskState_TASK_LOST},
		{&core.Autopsy{Exit: core.Exit{Lost: true}}, mesosv1.TaskState_TASK_LOST},
		{&core.Autopsy{}, mesosv1.TaskState_TASK_FINISHED},
		{&core.Autopsy{Exit: core.Exit{Code: 1}}, mesosv1.TaskState_TASK_FAILED},
		{&core.Autopsy{Exit: core.Exit{Signal: 15}, StopRequest: &core.StopRequest{}}, mesosv1.TaskState_TASK_KILLED},
	} {
		if got := EndState(c.a); got != c.want {
			t.Errorf("%+v is %s, want %s", c.a, got, c.want)
		}
	}
	asked := core.Container{State: core.ContainerRunning, Main: core.Process{StopRequest: &core.StopRequest{}}}
	for s, want := range map[core.ContainerState]mesosv1.TaskState{
		core.ContainerCreating: mesosv1.TaskState_TASK_STAGING, core.ContainerRunning: mesosv1.TaskState_TASK_RUNNING, core.ContainerPaused: mesosv1.TaskState_TASK_RUNNING,
	} {
		if got := taskState(&core.Container{State: s}); got != want {
			t.Errorf("%s is %s, want %s", s, got, want)
		}
	}
	if got := taskState(&asked); got != mesosv1.TaskState_TASK_KILLING {
		t.Errorf("one that is asked to end: %s", got)
	}
}
