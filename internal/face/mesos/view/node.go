// Package view shows the node's objects in Mesos' messages and documents: an owner is a framework,
// a sandbox an executor, a container a task. It also has the documents that older tools read by
// GET, and the agent's metrics under Mesos' names.
//
// It changes nothing, and reads nothing of the system but the machine's memory, load
// and disk size. Start reading at Node; documents.go has the documents, stats.go and
// metrics.go the numbers.
package view

import (
	"cmp"
	"net/netip"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
	"github.com/longshore/longshore/internal/face/mesos/translate"
)

// Node is the content of the node that is shown.
type Node struct {
	// Agent is the agent's id.
	Agent      string
	Sandboxes  []core.Sandbox
	Containers []core.Container
}

// cpuShares is the cgroup weight of one CPU.
const cpuShares = 1024

// Frameworks are the owners that have sandboxes, sorted by name.
func (n Node) Frameworks() *mesosagent.Response_GetFrameworks {
	r := &mesosagent.Response_GetFrameworks{}
	var owners []string
	for i := range n.Sandboxes {
		owners = append(owners, string(n.Sandboxes[i].Owner))
	}
	slices.Sort(owners)
	for _, o := range slices.Compact(owners) {
		user, checkpoint := "root", true
		r.Frameworks = append(r.Frameworks, &mesosagent.Response_GetFrameworks_Framework{FrameworkInfo: &mesosv1.FrameworkInfo{
			User: &user, Name: &o, Id: &mesosv1.FrameworkID{Value: &o}, Checkpoint: &checkpoint,
		}})
	}
	return r
}

// Executors are the sandboxes. A sandbox is completed if it has stopped; one of Mesos'
// own if its standalone container has ended.
func (n Node) Executors() *mesosagent.Response_GetExecutors {
	r := &mesosagent.Response_GetExecutors{}
	ended := map[core.ID]bool{}
	for i := range n.Containers {
		if c := &n.Containers[i]; c.Owner == core.OwnerMesos && c.Parent == "" && c.State == core.ContainerExited {
			ended[c.Sandbox] = true
		}
	}
	for _, sb := range n.sandboxes() {
		id, owner, name := ObjectName(sb.Meta), string(sb.Owner), string(sb.Key)
		e := &mesosagent.Response_GetExecutors_Executor{ExecutorInfo: &mesosv1.ExecutorInfo{
			Type: mesosv1.ExecutorInfo_DEFAULT.Enum(), ExecutorId: &mesosv1.ExecutorID{Value: &id}, FrameworkId: &mesosv1.FrameworkID{Value: &owner},
			Name: &name, Source: &id, Resources: limitResources(sb.Config.Resources), Labels: labelsOf(sb.Labels),
		}}
		if sb.State == core.SandboxStopped || ended[sb.ID] {
			r.CompletedExecutors = append(r.CompletedExecutors, e)
		} else {
			r.Executors = append(r.Executors, e)
		}
	}
	return r
}

// Tasks are the containers. Those that have ended are completed.
func (n Node) Tasks() *mesosagent.Response_GetTasks {
	r := &mesosagent.Response_GetTasks{}
	of := map[core.ID]core.Sandbox{}
	for _, sb := range n.Sandboxes {
		of[sb.ID] = sb
	}
	all := slices.Clone(n.Containers)
	slices.SortFunc(all, func(a, b core.Container) int { return compareMeta(a.Meta, b.Meta) })
	for i := range all {
		sb, ok := of[all[i].Sandbox]
		if !ok {
			continue // created after the sandboxes were read
		}
		t := n.task(&all[i], &sb)
		if all[i].State == core.ContainerExited {
			r.CompletedTasks = append(r.CompletedTasks, t)
		} else {
			r.LaunchedTasks = append(r.LaunchedTasks, t)
		}
	}
	return r
}

// State is Tasks, Executors and Frameworks together.
func (n Node) State() *mesosagent.Response_GetState {
	return &mesosagent.Response_GetState{GetTasks: n.Tasks(), GetExecutors: n.Executors(), GetFrameworks: n.Frameworks()}
}

// ObjectName is the name under which an object is shown: Mesos' own name for Mesos'
// objects, and the ID for all others.
func ObjectName(m core.Meta) string {
	if m.Owner == core.OwnerMesos {
		return string(m.Key)
	}
	return string(m.ID)
}

// ContainerID is ObjectName as a message.
func ContainerID(m core.Meta) *mesosv1.ContainerID {
	if m.Owner == core.OwnerMesos {
		return api.ParseID(string(m.Key))
	}
	name := string(m.ID)
	return &mesosv1.ContainerID{Value: &name}
}

// compareMeta sorts by owner and age.
func compareMeta(a, b core.Meta) int {
	return cmp.Or(cmp.Compare(a.Owner, b.Owner), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// sandboxes are the sandboxes, sorted.
func (n Node) sandboxes() []core.Sandbox {
	all := slices.Clone(n.Sandboxes)
	slices.SortFunc(all, func(a, b core.Sandbox) int { return compareMeta(a.Meta, b.Meta) })
	return all
}

// task is a container as a task.
func (n Node) task(c *core.Container, sb *core.Sandbox) *mesosv1.Task {
	id, name, owner, executor := ObjectName(c.Meta), string(c.Key), string(c.Owner), ObjectName(sb.Meta)
	t := &mesosv1.Task{
		Name: &name, TaskId: &mesosv1.TaskID{Value: &id}, FrameworkId: &mesosv1.FrameworkID{Value: &owner}, ExecutorId: &mesosv1.ExecutorID{Value: &executor},
		AgentId: &mesosv1.AgentID{Value: &n.Agent}, State: taskState(c).Enum(), Labels: labelsOf(c.Labels),
		Container: &mesosv1.ContainerInfo{Type: mesosv1.ContainerInfo_MESOS.Enum()},
	}
	if c.Parent == "" {
		t.Resources = limitResources(sb.Config.Resources)
		if rec, err := translate.ReadRecord(*c); err == nil && c.Owner == core.OwnerMesos && rec.Disk > 0 {
			t.Resources = append(t.Resources, mebibytes("disk", rec.Disk))
		}
		if gpus := len(c.Config.CDI); gpus > 0 && c.Owner == core.OwnerMesos {
			t.Resources = append(t.Resources, Scalar("gpus", float64(gpus)))
		}
	}
	t.Statuses = []*mesosv1.TaskStatus{n.status(c, sb, t)}
	return t
}

// status is the last status of a task. Earlier ones are not known.
func (n Node) status(c *core.Container, sb *core.Sandbox, t *mesosv1.Task) *mesosv1.TaskStatus {
	at := c.Created
	if !c.Main.Started.IsZero() {
		at = c.Main.Started
	}
	if !c.Main.Finished.IsZero() {
		at = c.Main.Finished
	}
	seconds := float64(at.UnixNano()) / 1e9
	s := &mesosv1.TaskStatus{
		TaskId: t.TaskId, State: t.State, AgentId: t.AgentId, ExecutorId: t.ExecutorId, Source: mesosv1.TaskStatus_SOURCE_AGENT.Enum(), Timestamp: &seconds,
		ContainerStatus: ContainerStatus(c.Meta, c.Main, sb),
	}
	if a := c.Main.Autopsy; a != nil {
		s.Message = &a.Verdict
		if a.OOM != nil && a.Exit.Status() != 0 {
			s.Reason = mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_MEMORY.Enum()
		}
		if message, ok := DiskLimitMessage(a); ok {
			s.Message, s.Reason = &message, mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_DISK.Enum()
		}
	}
	return s
}

// ContainerStatus is a container's process id and network addresses.
func ContainerStatus(m core.Meta, p core.Process, sb *core.Sandbox) *mesosv1.ContainerStatus {
	s := &mesosv1.ContainerStatus{ContainerId: ContainerID(m), ExecutorPid: pidOf(&p)}
	if len(sb.Config.Network.Attach) > 1 {
		for _, i := range sb.Network.Interfaces {
			var addrs []netip.Addr
			for _, a := range i.Addrs {
				addrs = append(addrs, a.Addr())
			}
			s.NetworkInfos = append(s.NetworkInfos, networkInfo(i.Network, addrs))
		}
	} else if len(sb.Network.Addrs) > 0 {
		s.NetworkInfos = []*mesosv1.NetworkInfo{networkInfo(sb.Config.Network.Name, sb.Network.Addrs)}
	}
	return s
}

// networkInfo is one network with its addresses.
func networkInfo(name string, addrs []netip.Addr) *mesosv1.NetworkInfo {
	n := &mesosv1.NetworkInfo{}
	if name != "" {
		n.Name = &name
	}
	for _, a := range addrs {
		text, protocol := a.String(), mesosv1.NetworkInfo_IPv4
		if a.Is6() {
			protocol = mesosv1.NetworkInfo_IPv6
		}
		n.IpAddresses = append(n.IpAddresses, &mesosv1.NetworkInfo_IPAddress{IpAddress: &text, Protocol: &protocol})
	}
	return n
}

// taskState is the state of a container. A container that was stopped is killed, with any exit
// status of its program.
func taskState(c *core.Container) mesosv1.TaskState {
	switch c.State {
	case core.ContainerCreating:
		return mesosv1.TaskState_TASK_STAGING
	case core.ContainerCreated:
		return mesosv1.TaskState_TASK_STARTING
	case core.ContainerExited:
		return EndState(c.Main.Autopsy)
	}
	if c.Main.StopRequest != nil {
		return mesosv1.TaskState_TASK_KILLING
	}
	return mesosv1.TaskState_TASK_RUNNING
}

// DiskLimitMessage reports whether a container was ended because it exceeded its disk
// limit, and returns Mesos' text for that.
func DiskLimitMessage(a *core.Autopsy) (message string, ok bool) {
	if a.StopRequest == nil || a.StopRequest.Owner != core.OwnerMesos || a.Exit.Signal == 0 {
		return "", false
	}
	return sandbox.QuotaMessage(a.StopRequest.Call)
}

// EndState is the state of a container that ended as a says. nil is an end that nobody
// has seen.
func EndState(a *core.Autopsy) mesosv1.TaskState {
	switch {
	case a == nil, a.Exit.Lost:
		return mesosv1.TaskState_TASK_LOST
	case a.Exit.Status() == 0:
		return mesosv1.TaskState_TASK_FINISHED
	case a.StopRequest != nil && a.OOM == nil:
		if _, exceeded := DiskLimitMessage(a); exceeded {
			return mesosv1.TaskState_TASK_FAILED
		}
		return mesosv1.TaskState_TASK_KILLED
	}
	return mesosv1.TaskState_TASK_FAILED
}

// limitResources are a sandbox's limits as resources.
func limitResources(r *specs.LinuxResources) (list []*mesosv1.Resource) {
	if r == nil {
		return nil
	}
	if r.CPU != nil && r.CPU.Shares != nil {
		list = append(list, Scalar("cpus", float64(*r.CPU.Shares)/cpuShares))
	}
	if r.Memory != nil && r.Memory.Limit != nil && *r.Memory.Limit > 0 {
		list = append(list, Scalar("mem", float64(*r.Memory.Limit)/(1<<20)))
	}
	return list
}

// Scalar is an amount of an unreserved resource.
func Scalar(name string, value float64) *mesosv1.Resource {
	return &mesosv1.Resource{Name: &name, Type: mesosv1.Value_SCALAR.Enum(), Scalar: &mesosv1.Value_Scalar{Value: &value}}
}

// labelsOf are labels as a message, sorted.
func labelsOf(m map[string]string) *mesosv1.Labels {
	if len(m) == 0 {
		return nil
	}
	l := &mesosv1.Labels{}
	for k, v := range m {
		l.Labels = append(l.Labels, &mesosv1.Label{Key: &k, Value: &v})
	}
	slices.SortFunc(l.Labels, func(a, b *mesosv1.Label) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	return l
}
