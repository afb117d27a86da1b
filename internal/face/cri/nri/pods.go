package nri

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// pod is a sandbox as plugins know it.
func (h *Host) pod(sb core.Sandbox) (*api.PodSandbox, error) {
	req, err := h.o.Pod(sb)
	if err != nil {
		return nil, err
	}
	cfg := req.GetConfig()
	p := &api.PodSandbox{
		Id: string(sb.ID), Name: cfg.GetMetadata().GetName(), Uid: cfg.GetMetadata().GetUid(), Namespace: cfg.GetMetadata().GetNamespace(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), RuntimeHandler: req.GetRuntimeHandler(), Pid: uint32(sb.Init),
		Linux: &api.LinuxPodSandbox{
			PodOverhead: limits(cfg.GetLinux().GetOverhead()), PodResources: limits(cfg.GetLinux().GetResources()),
			CgroupParent: cfg.GetLinux().GetCgroupParent(), CgroupsPath: sb.Cgroup.Path,
			Resources: api.FromOCILinuxResources(sb.Config.Resources, nil),
		},
	}
	for _, a := range sb.Network.Addrs {
		p.Ips = append(p.Ips, a.String())
	}
	for _, ns := range []struct {
		kind specs.LinuxNamespaceType
		of   core.Namespace
	}{
		{specs.NetworkNamespace, sb.Config.Namespaces.Net},
		{specs.IPCNamespace, sb.Config.Namespaces.IPC},
		{specs.UTSNamespace, sb.Config.Namespaces.UTS},
		{specs.PIDNamespace, sb.Config.Namespaces.PID},
		{specs.UserNamespace, sb.Config.Namespaces.User},
	} {
		if ns.of.Path != "" {
			p.Linux.Namespaces = append(p.Linux.Namespaces, &api.LinuxNamespace{Type: string(ns.kind), Path: ns.of.Path})
		}
	}
	return p, nil
}

func limits(r *v1.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{
		Memory: &api.LinuxMemory{Limit: api.Int64(r.GetMemoryLimitInBytes())},
		Cpu: &api.LinuxCPU{
			Shares: api.UInt64(uint64(r.GetCpuShares())), Quota: api.Int64(r.GetCpuQuota()), Period: api.UInt64(uint64(r.GetCpuPeriod())),
			Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems(),
		},
		Unified: r.GetUnified(),
	}
	for _, l := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

// container is a container as plugins know it; spec may be nil.
func (h *Host) container(c core.Container, spec *specs.Spec) (*api.Container, error) {
	cfg, err := h.o.Container(c)
	if err != nil {
		return nil, err
	}
	t := &api.Container{
		Id: string(c.ID), PodSandboxId: string(c.Sandbox), Name: cfg.GetMetadata().GetName(), State: state(c.State),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), Pid: uint32(c.Main.Pid),
		CreatedAt: nanos(c.Created), StartedAt: nanos(c.Main.Started), FinishedAt: nanos(c.Main.Finished),
		Image: &api.Image{Name: cfg.GetImage().GetUserSpecifiedImage()},
		Linux: &api.LinuxContainer{CgroupsPath: c.Cgroup.Path},
	}
	if t.GetImage().GetName() == "" {
		t.Image.Name = cfg.GetImage().GetImage()
	}
	for _, d := range cfg.GetCDIDevices() {
		t.CDIDevices = append(t.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	if a := c.Main.Autopsy; a != nil {
		t.ExitCode, t.StatusMessage = int32(a.Exit.Status()), a.Verdict
	}
	describe(t, spec)
	return t, nil
}

// describe adds the values of the spec.
func describe(t *api.Container, spec *specs.Spec) {
	if spec == nil {
		return
	}
	// Those of the request and, as with containerd, those that only the runtime gets.
	all := map[string]string{}
	maps.Copy(all, t.GetAnnotations())
	maps.Copy(all, spec.Annotations)
	t.Annotations = all
	t.Mounts = api.FromOCIMounts(spec.Mounts)
	t.Hooks = api.FromOCIHooks(spec.Hooks)
	if p := spec.Process; p != nil {
		t.Args, t.Env = p.Args, p.Env
		t.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
		if p.OOMScoreAdj != nil {
			t.Linux.OomScoreAdj = api.Int(*p.OOMScoreAdj)
		}
		t.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
		t.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
		for _, l := range p.Rlimits {
			t.Rlimits = append(t.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
	}
	if l := spec.Linux; l != nil {
		t.Linux.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
		t.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		t.Linux.Resources = api.FromOCILinuxResources(l.Resources, nil)
		if l.Seccomp != nil {
			t.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
		t.Linux.Sysctl = l.Sysctl
		t.Linux.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
	}
}

func state(s core.ContainerState) api.ContainerState {
	switch s {
	case core.ContainerCreating, core.ContainerCreated:
		return api.ContainerState_CONTAINER_CREATED
	case core.ContainerRunning:
		return api.ContainerState_CONTAINER_RUNNING
	case core.ContainerPaused, core.ContainerAsleep:
		return api.ContainerState_CONTAINER_PAUSED
	case core.ContainerExited:
		return api.ContainerState_CONTAINER_STOPPED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// BridgeLog sends the library's log to ours, its informational lines at level debug. The library
// has one logger for a whole process: call it once, before New.
func BridgeLog(log *slog.Logger) { nrilog.Set(logger{log}) }

type logger struct{ log *slog.Logger }

func (l logger) say(ctx context.Context, level slog.Level, format string, args []any) {
	l.log.Log(ctx, level, "nri", slog.String("says", fmt.Sprintf(format, args...)))
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelWarn, format, args)
}

// pluginMetrics learns from the library how many plugins there are.
type pluginMetrics struct{ h *Host }

var _ adaptation.Metrics = pluginMetrics{}

func (pluginMetrics) RecordPluginInvocation(string, string, error) {}

func (pluginMetrics) RecordPluginLatency(string, string, time.Duration) {}

func (pluginMetrics) RecordPluginAdjustments(string, string, *api.ContainerAdjustment, int, int) {}

func (f pluginMetrics) UpdatePluginCount(n int) { f.h.count.Store(int64(n)) }
