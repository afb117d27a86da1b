package view

import (
	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Container is one of Mesos' own containers in a list.
func Container(c *core.Container, sb *core.Sandbox) *mesosagent.Response_GetContainers_Container {
	status := ContainerStatus(c.Meta, c.Main, sb)
	return &mesosagent.Response_GetContainers_Container{ContainerId: status.ContainerId, ContainerStatus: status}
}

// ExecutorContainer is another owner's container in a list, shown as an executor's.
func ExecutorContainer(c *core.Container, sb *core.Sandbox) *mesosagent.Response_GetContainers_Container {
	owner, executor, name := string(c.Owner), ObjectName(sb.Meta), string(sb.Key)
	r := Container(c, sb)
	r.FrameworkId, r.ExecutorId, r.ExecutorName = &mesosv1.FrameworkID{Value: &owner}, &mesosv1.ExecutorID{Value: &executor}, &name
	return r
}

// SessionContainer is a session in a list, shown as a container in its parent c.
func SessionContainer(c *core.Container, p *core.Process) *mesosagent.Response_GetContainers_Container {
	id := api.ParseID(string(c.Key) + "." + string(p.ID))
	return &mesosagent.Response_GetContainers_Container{ContainerId: id, ContainerStatus: &mesosv1.ContainerStatus{ContainerId: id, ExecutorPid: pidOf(p)}}
}

// pidOf is a process's id on the host; nil if it has none.
func pidOf(p *core.Process) *uint32 {
	if p.Pid <= 0 {
		return nil
	}
	n := uint32(p.Pid)
	return &n
}

// WaitResult is how a container ended, with the status of wait(2). State, reason and
// message are set only if the kernel or the agent ended it, or if its end is not known.
// disk is the container's disk limit in bytes, 0 if it is not known.
func WaitResult(a core.Autopsy, disk uint64) *mesosagent.Response_WaitContainer {
	r := &mesosagent.Response_WaitContainer{}
	switch {
	case a.Exit.Lost:
		r.State, r.Message = mesosv1.TaskState_TASK_LOST.Enum(), &a.Verdict
		return r
	case a.Exit.Signal != 0:
		r.ExitStatus = proto.Int32(int32(a.Exit.Signal))
	default:
		r.ExitStatus = proto.Int32(int32(a.Exit.Code) << 8)
	}
	if a.OOM != nil && a.Exit.Status() != 0 {
		r.State, r.Reason, r.Message = mesosv1.TaskState_TASK_FAILED.Enum(), mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_MEMORY.Enum(), &a.Verdict
		r.Limitation = limitation("mem", a.Limit)
	}
	if message, ok := DiskLimitMessage(&a); ok {
		r.State, r.Reason, r.Message = mesosv1.TaskState_TASK_FAILED.Enum(), mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_DISK.Enum(), &message
		r.Limitation = limitation("disk", disk)
	}
	return r
}

// limitation names the resource that a container exceeded; 0 bytes is an unknown amount.
func limitation(resource string, bytes uint64) *mesosv1.TaskResourceLimitation {
	l := &mesosv1.TaskResourceLimitation{}
	if bytes > 0 {
		l.Resources = []*mesosv1.Resource{mebibytes(resource, bytes)}
	}
	return l
}

// mebibytes is an amount of bytes as a resource, which Mesos counts in MiB.
func mebibytes(resource string, bytes uint64) *mesosv1.Resource {
	return Scalar(resource, float64(bytes)/(1<<20))
}
