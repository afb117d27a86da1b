package cri

import (
	"slices"
	"strings"
	"time"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/errtext"
)

// The reasons that kubelet and its users know.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOM       = "OOMKilled"
	reasonStart     = "StartError"
	reasonUnknown   = "Unknown"
)

// startCode is the exit code of a program that could not be started, as
// containerd says it: kubelet takes it for an end, so that a pod that is never
// to be restarted has failed.
const startCode = 128

func sandboxState(s core.SandboxState) v1.PodSandboxState {
	if s == core.SandboxReady {
		return v1.PodSandboxState_SANDBOX_READY
	}
	return v1.PodSandboxState_SANDBOX_NOTREADY
}

func containerState(s core.ContainerState) v1.ContainerState {
	switch s {
	case core.ContainerCreated:
		return v1.ContainerState_CONTAINER_CREATED
	case core.ContainerRunning, core.ContainerPaused, core.ContainerAsleep:
		return v1.ContainerState_CONTAINER_RUNNING
	case core.ContainerExited:
		return v1.ContainerState_CONTAINER_EXITED
	default:
		return v1.ContainerState_CONTAINER_UNKNOWN
	}
}

// nanos is 0 for the zero time: not specified.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func listedSandbox(sb *core.Sandbox, r podRecord) *v1.PodSandbox {
	return &v1.PodSandbox{
		Id: string(sb.ID), Metadata: r.Config.GetConfig().GetMetadata(), State: sandboxState(sb.State), CreatedAt: nanos(sb.Created),
		Labels: r.Config.GetConfig().GetLabels(), Annotations: r.Config.GetConfig().GetAnnotations(), RuntimeHandler: r.Config.GetRuntimeHandler(),
	}
}

func sandboxStatus(sb *core.Sandbox, r podRecord) *v1.PodSandboxStatus {
	o := r.Config.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()
	s := &v1.PodSandboxStatus{
		Id: string(sb.ID), Metadata: r.Config.GetConfig().GetMetadata(), State: sandboxState(sb.State), CreatedAt: nanos(sb.Created),
		Network: &v1.PodSandboxNetworkStatus{},
		Linux: &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{Options: &v1.NamespaceOption{
			Network: o.GetNetwork(), Pid: o.GetPid(), Ipc: o.GetIpc(), TargetId: o.GetTargetId(), UsernsOptions: o.GetUsernsOptions(),
		}}},
		Labels: r.Config.GetConfig().GetLabels(), Annotations: r.Config.GetConfig().GetAnnotations(), RuntimeHandler: r.Config.GetRuntimeHandler(),
	}
	// On the node's network the address is the node's, which kubelet knows; a
	// stopped sandbox has given its address back.
	if sb.State == core.SandboxReady && sb.Config.Namespaces.Net.Mode != core.Host {
		for i, a := range sb.Network.Addrs {
			if i == 0 {
				s.Network.Ip = a.String()
				continue
			}
			s.Network.AdditionalIps = append(s.Network.AdditionalIps, &v1.PodIP{Ip: a.String()})
		}
	}
	return s
}

func listedContainer(c *core.Container, r containerRecord) *v1.Container {
	return &v1.Container{
		Id: string(c.ID), PodSandboxId: string(c.Sandbox), Metadata: r.Config.GetMetadata(), Image: r.Config.GetImage(),
		ImageRef: r.Found.GetImageId(), ImageId: r.Found.GetImageId(), State: containerState(c.State), CreatedAt: nanos(c.Created),
		Labels: r.Config.GetLabels(), Annotations: r.Config.GetAnnotations(),
	}
}

func containerStatus(c *core.Container, r containerRecord) *v1.ContainerStatus {
	s := &v1.ContainerStatus{
		Id: string(c.ID), Metadata: r.Config.GetMetadata(), State: containerState(c.State), CreatedAt: nanos(c.Created),
		Image: r.Found.GetImage(), ImageRef: r.Found.GetImageRef(), ImageId: r.Found.GetImageId(),
		Labels: r.Config.GetLabels(), Annotations: r.Config.GetAnnotations(), Mounts: slices.Concat(r.Config.GetMounts(), r.Found.GetMounts()),
		LogPath: sinkPath(c), Resources: r.Found.GetResources(), User: r.Found.GetUser(), StopSignal: convert.StopSignal(c.Config.Stop.Signal),
	}
	if s.Image == nil {
		s.Image = r.Config.GetImage()
	}
	switch c.State {
	case core.ContainerRunning, core.ContainerPaused, core.ContainerAsleep:
		s.StartedAt = nanos(c.Main.Started)
	case core.ContainerExited:
		ended(s, &c.Main)
	}
	return s
}

// ended tells how the main process ended. The message stays empty for an end
// of the program's own: kubelet puts it before the program's termination
// message.
func ended(s *v1.ContainerStatus, main *core.Process) {
	s.StartedAt, s.FinishedAt = nanos(main.Started), nanos(main.Finished)
	a := main.Autopsy
	if a == nil {
		// Stopped before it was started.
		s.Reason = reasonCompleted
		return
	}
	if s.FinishedAt == 0 {
		s.FinishedAt = nanos(a.Exit.At)
	}
	s.ExitCode = int32(a.Exit.Status())
	switch {
	case a.Start != "":
		s.Reason, s.Message, s.StartedAt, s.ExitCode = reasonStart, errtext.Plain(a.Start), 0, startCode
	case a.Exit.Lost:
		s.Reason, s.Message = reasonUnknown, a.Verdict
	case a.OOM != nil && a.OOM.Main:
		s.Reason = reasonOOM
	case s.ExitCode == 0:
		s.Reason = reasonCompleted
	default:
		s.Reason = reasonError
	}
	if a.LostOutput > 0 && s.Message == "" {
		s.Message = autopsy.LostOutput(a.LostOutput)
	}
}

// sinkPath is the container's log file.
func sinkPath(c *core.Container) string {
	for _, s := range c.Config.IO.Sinks {
		if s.Format.Records() {
			return s.Path
		}
	}
	return ""
}

// conditions are the conditions that kubelet requires before it starts pods on this node.
func conditions(runtimeProblem string, n core.NetworkInfo, netErr error) []*v1.RuntimeCondition {
	runtime := &v1.RuntimeCondition{Type: v1.RuntimeReady, Status: runtimeProblem == ""}
	if runtimeProblem != "" {
		runtime.Reason, runtime.Message = "RuntimeNotReady", runtimeProblem
	}
	network := &v1.RuntimeCondition{Type: v1.NetworkReady, Status: netErr == nil && n.Ready}
	switch {
	case netErr != nil:
		network.Reason, network.Message = "NetworkNotReady", netErr.Error()
	case !n.Ready:
		network.Reason, network.Message = "NetworkNotReady", strings.TrimSpace(n.Mode+" network: "+n.Reason)
	}
	return []*v1.RuntimeCondition{runtime, network}
}
