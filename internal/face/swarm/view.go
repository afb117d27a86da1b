package swarm

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
)

// message is the message of a state, in docker's words, because people search for them.
func message(s swarmv1.TaskState) string {
	switch s {
	case swarmv1.TaskState_ACCEPTED:
		return "accepted"
	case swarmv1.TaskState_PREPARING:
		return "preparing"
	case swarmv1.TaskState_READY:
		return "prepared"
	case swarmv1.TaskState_STARTING:
		return "starting"
	case swarmv1.TaskState_RUNNING:
		return "started"
	case swarmv1.TaskState_COMPLETE:
		return "finished"
	case swarmv1.TaskState_SHUTDOWN:
		return "shutdown"
	default:
		return strings.ToLower(s.String())
	}
}

// status returns the status of a task in its next state, with the error of a failure and the ports of its sandbox.
func status(t *swarmv1.Task, next swarmv1.TaskState, a stepper.Action, r result, ports []core.Port) *swarmv1.TaskStatus {
	s := &swarmv1.TaskStatus{Timestamp: timestamppb.Now(), State: next, Message: message(next), PortStatus: portStatus(t, next, ports)}
	before := t.GetStatus().GetContainer()
	if r.c.ID != "" || before != nil {
		s.RuntimeStatus = &swarmv1.TaskStatus_Container{Container: containerStatus(r.c, before)}
	}
	if r.message != "" {
		s.Message = r.message
	}
	if !stepper.Ended(next) {
		return s
	}
	if autopsy := r.c.Main.Autopsy; autopsy != nil {
		s.Timestamp = timestamppb.New(autopsy.Exit.At)
		s.Message = autopsy.Verdict
	}
	if next == swarmv1.TaskState_FAILED || next == swarmv1.TaskState_REJECTED {
		if s.Err = s.Message; r.err != nil {
			s.Err = r.err.Error()
		}
		if a != stepper.Watch {
			s.Message = message(t.GetStatus().GetState())
		}
	}
	return s
}

// containerStatus is the container as it is, or, when it is not at hand, as it was.
func containerStatus(c core.Container, before *swarmv1.ContainerStatus) *swarmv1.ContainerStatus {
	s := &swarmv1.ContainerStatus{ContainerId: before.GetContainerId(), ExitCode: before.GetExitCode()}
	if c.ID == "" {
		return s
	}
	s.ContainerId, s.Pid = string(c.ID), int32(c.Main.Pid)
	if c.Main.Autopsy != nil {
		s.ExitCode = int32(c.Main.Autopsy.Exit.Status())
	}
	return s
}

// portStatus are the ports of the node that a running task has; given are its sandbox's, in the order of
// the task's: one for each, or one for each with mode=host. On the node's own network it has none.
func portStatus(t *swarmv1.Task, s swarmv1.TaskState, given []core.Port) *swarmv1.PortStatus {
	if s != swarmv1.TaskState_STARTING && s != swarmv1.TaskState_RUNNING {
		return nil
	}
	asked := t.GetEndpoint().GetPorts()
	if len(asked) != len(given) {
		asked = slices.DeleteFunc(slices.Clone(asked), func(p *swarmv1.PortConfig) bool { return p.GetPublishMode() != swarmv1.PortConfig_HOST })
	}
	if len(asked) != len(given) {
		return nil
	}
	var list []*swarmv1.PortConfig
	for i, p := range asked {
		if p.GetPublishMode() != swarmv1.PortConfig_HOST {
			continue
		}
		p = proto.CloneOf(p)
		p.PublishedPort = uint32(given[i].Host)
		list = append(list, p)
	}
	if len(list) == 0 {
		return nil
	}
	return &swarmv1.PortStatus{Ports: list}
}
