package nri

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// apply changes a spec as the plugins, merged, want it.
func (h *Host) apply(spec *specs.Spec, adjust *api.ContainerAdjustment) error {
	if adjust == nil {
		return nil
	}
	if spec.Process == nil {
		spec.Process = &specs.Process{}
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	if len(adjust.GetCDIDevices()) > 0 && h.o.CDI == nil {
		return fmt.Errorf("nri plugin: it asks for CDI devices: %w", errdefs.ErrNotImplemented)
	}
	if adjust.GetLinux().GetCgroupsPath() != "" || adjust.GetLinux().GetResources().GetBlockioClass() != nil || adjust.GetLinux().GetResources().GetRdtClass() != nil {
		// The engine places containers; classes are another runtime's config.
		return fmt.Errorf("nri plugin: it asks for a cgroup path or a class of block I/O or RDT: %w", errdefs.ErrNotImplemented)
	}
	g := generate.SpecGenerator(editor{spec}, generate.WithCDIDeviceInjector(h.o.CDI))
	if err := g.Adjust(adjust); err != nil {
		return fmt.Errorf("nri plugin: %v: %w", err, errdefs.ErrInvalidArgument) //nolint:errorlint // a plugin's mistake
	}
	return nil
}

// editor implements the library generator's view of a spec.
type editor struct{ s *specs.Spec }

var _ generate.UnderlyingGenerator = editor{}

func (e editor) Spec() *specs.Spec { return e.s }

func (e editor) AddAnnotation(key, value string) {
	if e.s.Annotations == nil {
		e.s.Annotations = map[string]string{}
	}
	e.s.Annotations[key] = value
}

func (e editor) RemoveAnnotation(key string) { delete(e.s.Annotations, key) }

func (e editor) AddDevice(d specs.LinuxDevice) {
	e.RemoveDevice(d.Path)
	e.s.Linux.Devices = append(e.s.Linux.Devices, d)
}

func (e editor) RemoveDevice(path string) {
	e.s.Linux.Devices = slices.DeleteFunc(e.s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (e editor) AddOrReplaceLinuxNamespace(ns, path string) error {
	if err := e.RemoveLinuxNamespace(ns); err != nil {
		return err
	}
	e.s.Linux.Namespaces = append(e.s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(ns), Path: path})
	return nil
}

func (e editor) RemoveLinuxNamespace(ns string) error {
	e.s.Linux.Namespaces = slices.DeleteFunc(e.s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return string(n.Type) == ns })
	return nil
}

func (e editor) hooks() *specs.Hooks {
	if e.s.Hooks == nil {
		e.s.Hooks = &specs.Hooks{}
	}
	return e.s.Hooks
}

func (e editor) AddPreStartHook(h specs.Hook) {
	e.hooks().Prestart = append(e.hooks().Prestart, h) //nolint:staticcheck // plugins may still ask for it
}

func (e editor) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }

func (e editor) AddPostStopHook(h specs.Hook) { e.hooks().Poststop = append(e.hooks().Poststop, h) }

func (e editor) AddProcessEnv(name, value string) {
	e.s.Process.Env = append(e.s.Process.Env, name+"="+value)
}
func (e editor) ClearProcessEnv()             { e.s.Process.Env = nil }
func (e editor) SetProcessArgs(args []string) { e.s.Process.Args = args }

func (e editor) SetProcessOOMScoreAdj(adj int) { e.s.Process.OOMScoreAdj = &adj }

func (e editor) AddMount(m specs.Mount) { e.s.Mounts = append(e.s.Mounts, m) }
func (e editor) ClearMounts()           { e.s.Mounts = nil }
func (e editor) Mounts() []specs.Mount  { return e.s.Mounts }

func (e editor) RemoveMount(dest string) {
	e.s.Mounts = slices.DeleteFunc(e.s.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

func (e editor) AddLinuxSysctl(key, value string) {
	// The map may be the sandbox's own.
	m := maps.Clone(e.s.Linux.Sysctl)
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	e.s.Linux.Sysctl = m
}

func (e editor) RemoveLinuxSysctl(key string) {
	e.s.Linux.Sysctl = maps.Clone(e.s.Linux.Sysctl)
	delete(e.s.Linux.Sysctl, key)
}

func (e editor) SetLinuxCgroupsPath(path string) { e.s.Linux.CgroupsPath = path }

func (e editor) SetLinuxRootPropagation(p string) error {
	e.s.Linux.RootfsPropagation = p
	return nil
}

func (e editor) resources() *specs.LinuxResources {
	if e.s.Linux.Resources == nil {
		e.s.Linux.Resources = &specs.LinuxResources{}
	}
	return e.s.Linux.Resources
}

func (e editor) cpu() *specs.LinuxCPU {
	r := e.resources()
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	return r.CPU
}

func (e editor) memory() *specs.LinuxMemory {
	r := e.resources()
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	return r.Memory
}

func (e editor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	e.resources().Devices = append(e.resources().Devices, specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}

func (e editor) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	r := e.resources()
	r.HugepageLimits = slices.DeleteFunc(r.HugepageLimits, func(l specs.LinuxHugepageLimit) bool { return l.Pagesize == size })
	r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: limit})
}

func (e editor) AddLinuxResourcesUnified(key, val string) {
	r := e.resources()
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified[key] = val
}

func (e editor) SetLinuxResourcesCPUCpus(cpus string)             { e.cpu().Cpus = cpus }
func (e editor) SetLinuxResourcesCPUMems(mems string)             { e.cpu().Mems = mems }
func (e editor) SetLinuxResourcesCPUPeriod(period uint64)         { e.cpu().Period = &period }
func (e editor) SetLinuxResourcesCPUQuota(quota int64)            { e.cpu().Quota = &quota }
func (e editor) SetLinuxResourcesCPURealtimePeriod(period uint64) { e.cpu().RealtimePeriod = &period }

func (e editor) SetLinuxResourcesCPURealtimeRuntime(runtime int64) {
	e.cpu().RealtimeRuntime = &runtime
}
func (e editor) SetLinuxResourcesCPUShares(shares uint64) { e.cpu().Shares = &shares }
func (e editor) SetLinuxResourcesMemoryLimit(limit int64) { e.memory().Limit = &limit }
func (e editor) SetLinuxResourcesMemorySwap(swap int64)   { e.memory().Swap = &swap }
