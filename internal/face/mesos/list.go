package mesos

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/door"
	"github.com/longshore/longshore/internal/face/mesos/figures"
	"github.com/longshore/longshore/internal/face/mesos/ids"
)

// getContainers lists what runs, as far as it is asked for: executors, which are
// always shown, are a master's, and there are none.
func (s *server) getContainers(ctx context.Context, x *door.Exchange) error {
	in := x.Call.GetGetContainers()
	all, err := s.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b core.Container) int { return strings.Compare(string(a.Key), string(b.Key)) })
	resp := &mesosagent.Response_GetContainers{}
	for _, c := range all {
		if c.State != core.ContainerRunning && c.State != core.ContainerPaused {
			continue
		}
		if nested := c.Parent != ""; nested && in.GetShowNested() || !nested && in.GetShowStandalone() {
			resp.Containers = append(resp.Containers, s.shown(ctx, c))
		}
		for _, p := range c.Execs {
			if p.Autopsy == nil && in.GetShowNested() {
				resp.Containers = append(resp.Containers, shownSession(c, p))
			}
		}
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_CONTAINERS.Enum(), GetContainers: resp})
}

// wanted are the figures that a container is shown with.
const wanted = core.FigureUsage | core.FigureDetail | core.FigureCount

// shown is a container with what could be found out about it. A standalone one's
// figures are those of its whole tree, as Mesos has it.
func (s *server) shown(ctx context.Context, c core.Container) *mesosagent.Response_GetContainers_Container {
	r := &mesosagent.Response_GetContainers_Container{ContainerId: ids.Parse(string(c.Key))}
	r.ContainerStatus = &mesosv1.ContainerStatus{ContainerId: ids.Parse(string(c.Key)), ExecutorPid: pid(c.Main)}
	if sb, err := s.engine.Sandbox(ctx, c.Sandbox); err == nil && len(sb.Network.Addrs) > 0 {
		r.ContainerStatus.NetworkInfos = []*mesosv1.NetworkInfo{networkInfo(sb)}
	}
	var st core.Stats
	var err error
	if c.Parent == "" {
		st, err = s.engine.SandboxStats(ctx, c.Sandbox, wanted)
	} else {
		st, err = s.engine.ContainerStats(ctx, &c, wanted)
	}
	if err == nil {
		r.ResourceStatistics = figures.Of(st)
	} else if !errdefs.IsNotFound(err) {
		s.log.DebugContext(ctx, "a container is shown without figures", "container", string(c.ID), "error", err)
	}
	return r
}

func networkInfo(sb core.Sandbox) *mesosv1.NetworkInfo {
	n := &mesosv1.NetworkInfo{}
	if sb.Config.Network.Name != "" {
		n.Name = &sb.Config.Network.Name
	}
	for _, a := range sb.Network.Addrs {
		text, protocol := a.String(), mesosv1.NetworkInfo_IPv4
		if a.Is6() {
			protocol = mesosv1.NetworkInfo_IPv6
		}
		n.IpAddresses = append(n.IpAddresses, &mesosv1.NetworkInfo_IPAddress{IpAddress: &text, Protocol: &protocol})
	}
	return n
}

// shownSession is a session as a container of its own.
func shownSession(c core.Container, p core.Process) *mesosagent.Response_GetContainers_Container {
	name := string(c.Key) + "." + string(p.ID)
	return &mesosagent.Response_GetContainers_Container{
		ContainerId: ids.Parse(name), ContainerStatus: &mesosv1.ContainerStatus{ContainerId: ids.Parse(name), ExecutorPid: pid(p)},
	}
}

func pid(p core.Process) *uint32 {
	if p.Pid <= 0 {
		return nil
	}
	n := uint32(p.Pid)
	return &n
}
