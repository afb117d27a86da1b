package kata

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/guest"
)

// toSpec is the container's configuration in OCI's own form. A value of 0, which the
// protocol cannot tell from none, is none.
func toSpec(in *katav1.Spec) (*specs.Spec, error) {
	p, err := toProcess(in.GetProcess())
	if err != nil {
		return nil, err
	}
	if in.GetRoot().GetPath() == "" {
		return nil, errors.New("the spec has no root")
	}
	s := &specs.Spec{
		Version: in.GetVersion(), Process: p, Hostname: in.GetHostname(), Annotations: in.GetAnnotations(),
		Root: &specs.Root{Path: in.GetRoot().GetPath(), Readonly: in.GetRoot().GetReadonly()}, Hooks: toHooks(in.GetHooks()),
	}
	for _, m := range in.GetMounts() {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.GetDestination(), Type: m.GetType(), Source: m.GetSource(), Options: m.GetOptions()})
	}
	s.Linux, err = toLinux(in.GetLinux())
	return s, err
}

func toProcess(in *katav1.Process) (*specs.Process, error) {
	if in == nil {
		return nil, errors.New("the spec has no process")
	}
	if len(in.GetArgs()) == 0 {
		return nil, errors.New("the process has no arguments")
	}
	u := in.GetUser()
	p := &specs.Process{
		Terminal: in.GetTerminal(), Args: in.GetArgs(), Env: in.GetEnv(), Cwd: in.GetCwd(), NoNewPrivileges: in.GetNoNewPrivileges(),
		ApparmorProfile: in.GetApparmorProfile(), SelinuxLabel: in.GetSelinuxLabel(),
		User: specs.User{UID: u.GetUID(), GID: u.GetGID(), AdditionalGids: u.GetAdditionalGids(), Username: u.GetUsername()},
	}
	if p.Cwd == "" {
		p.Cwd = "/"
	}
	if size := in.GetConsoleSize(); size.GetHeight() > 0 && size.GetWidth() > 0 {
		p.ConsoleSize = &specs.Box{Height: uint(size.GetHeight()), Width: uint(size.GetWidth())}
	}
	if c := in.GetCapabilities(); c != nil {
		p.Capabilities = &specs.LinuxCapabilities{
			Bounding: c.GetBounding(), Effective: c.GetEffective(), Inheritable: c.GetInheritable(), Permitted: c.GetPermitted(), Ambient: c.GetAmbient(),
		}
	}
	for _, r := range in.GetRlimits() {
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: r.GetType(), Hard: r.GetHard(), Soft: r.GetSoft()})
	}
	adj := in.GetOOMScoreAdj()
	if adj < -1000 || adj > 1000 {
		return nil, fmt.Errorf("oom_score_adj is %d, and can be from -1000 to 1000", adj)
	}
	score := int(adj)
	p.OOMScoreAdj = &score // never nil: the process would inherit the keeper's
	return p, nil
}

func toHooks(in *katav1.Hooks) *specs.Hooks {
	if in == nil {
		return nil
	}
	h := &specs.Hooks{
		CreateRuntime: hooks(in.GetCreateRuntime()), CreateContainer: hooks(in.GetCreateContainer()), StartContainer: hooks(in.GetStartContainer()),
		Poststart: hooks(in.GetPoststart()), Poststop: hooks(in.GetPoststop()),
	}
	h.Prestart = hooks(in.GetPrestart()) //nolint:staticcheck // the shim may send it
	return h
}

// hookTimeout is the default timeout of a hook, in seconds.
const hookTimeout = 10

func hooks(in []*katav1.Hook) (out []specs.Hook) {
	for _, h := range in {
		one := specs.Hook{Path: h.GetPath(), Args: h.GetArgs(), Env: h.GetEnv(), Timeout: new(hookTimeout)}
		if t := int(h.GetTimeout()); t > 0 {
			one.Timeout = &t
		}
		out = append(out, one)
	}
	return out
}

func toLinux(in *katav1.Linux) (*specs.Linux, error) {
	l := &specs.Linux{
		UIDMappings: mappings(in.GetUIDMappings()), GIDMappings: mappings(in.GetGIDMappings()), Sysctl: in.GetSysctl(), CgroupsPath: in.GetCgroupsPath(),
		RootfsPropagation: in.GetRootfsPropagation(), MaskedPaths: in.GetMaskedPaths(), ReadonlyPaths: in.GetReadonlyPaths(), MountLabel: in.GetMountLabel(),
		Resources: toResources(in.GetResources()), Seccomp: toSeccomp(in.GetSeccomp()),
	}
	for _, n := range in.GetNamespaces() {
		t := specs.LinuxNamespaceType(n.GetType())
		if slices.ContainsFunc(l.Namespaces, func(o specs.LinuxNamespace) bool { return o.Type == t }) {
			return nil, fmt.Errorf("the spec has two namespaces of type %q", clip(n.GetType()))
		}
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: t, Path: n.GetPath()})
	}
	for _, d := range in.GetDevices() {
		mode, uid, gid := fs.FileMode(d.GetFileMode())&fs.ModePerm, d.GetUID(), d.GetGID()
		if mode == 0 {
			mode = guest.Permissions(d.GetPath())
		}
		l.Devices = append(l.Devices, specs.LinuxDevice{Path: d.GetPath(), Type: d.GetType(), Major: d.GetMajor(), Minor: d.GetMinor(), FileMode: &mode, UID: &uid, GID: &gid})
	}
	if c := in.GetIntelRdt(); c != nil {
		l.IntelRdt = &specs.LinuxIntelRdt{L3CacheSchema: c.GetL3CacheSchema()}
	}
	return l, nil
}

func mappings(in []*katav1.LinuxIDMapping) (out []specs.LinuxIDMapping) {
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerID(), HostID: m.GetHostID(), Size: m.GetSize()})
	}
	return out
}

// some returns nil for 0, which is none.
func some[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}

func toResources(in *katav1.LinuxResources) *specs.LinuxResources {
	if in == nil {
		return nil
	}
	r := &specs.LinuxResources{}
	for _, d := range in.GetDevices() {
		rule := specs.LinuxDeviceCgroup{Allow: d.GetAllow(), Type: d.GetType(), Access: d.GetAccess()}
		// No device has the major number 0, which is how the protocol says any.
		if major := d.GetMajor(); major > 0 {
			rule.Major = &major
		}
		if minor := d.GetMinor(); minor > 0 || minor == 0 && rule.Major != nil {
			rule.Minor = &minor
		}
		r.Devices = append(r.Devices, rule)
	}
	if m := in.GetMemory(); m != nil {
		r.Memory = &specs.LinuxMemory{Limit: some(m.GetLimit()), Reservation: some(m.GetReservation()), Swap: some(m.GetSwap()), Swappiness: some(m.GetSwappiness()), DisableOOMKiller: some(m.GetDisableOOMKiller())}
	}
	if c := in.GetCPU(); c != nil {
		r.CPU = &specs.LinuxCPU{
			Shares: some(c.GetShares()), Quota: some(c.GetQuota()), Period: some(c.GetPeriod()), RealtimeRuntime: some(c.GetRealtimeRuntime()),
			RealtimePeriod: some(c.GetRealtimePeriod()), Cpus: c.GetCpus(), Mems: c.GetMems(),
		}
	}
	if p := in.GetPids(); p.GetLimit() != 0 {
		r.Pids = &specs.LinuxPids{Limit: some(p.GetLimit())}
	}
	for _, h := range in.GetHugepageLimits() {
		r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPagesize(), Limit: h.GetLimit()})
	}
	r.BlockIO = toBlockIO(in.GetBlockIO())
	if n := in.GetNetwork(); n != nil {
		r.Network = &specs.LinuxNetwork{ClassID: some(n.GetClassID())}
		for _, p := range n.GetPriorities() {
			r.Network.Priorities = append(r.Network.Priorities, specs.LinuxInterfacePriority{Name: p.GetName(), Priority: p.GetPriority()})
		}
	}
	return r
}

func toBlockIO(in *katav1.LinuxBlockIO) *specs.LinuxBlockIO {
	if in == nil {
		return nil
	}
	b := &specs.LinuxBlockIO{
		ThrottleReadBpsDevice: throttles(in.GetThrottleReadBpsDevice()), ThrottleWriteBpsDevice: throttles(in.GetThrottleWriteBpsDevice()),
		ThrottleReadIOPSDevice: throttles(in.GetThrottleReadIOPSDevice()), ThrottleWriteIOPSDevice: throttles(in.GetThrottleWriteIOPSDevice()),
		Weight: some(weight(in.GetWeight())), LeafWeight: some(weight(in.GetLeafWeight())),
	}
	for _, w := range in.GetWeightDevice() {
		d := specs.LinuxWeightDevice{Weight: some(weight(w.GetWeight())), LeafWeight: some(weight(w.GetLeafWeight()))}
		d.Major, d.Minor = w.GetMajor(), w.GetMinor()
		b.WeightDevice = append(b.WeightDevice, d)
	}
	return b
}

// weight keeps a too large value too large; the kernel takes 10 to 1000.
func weight(n uint32) uint16 { return uint16(min(n, math.MaxUint16)) }

func throttles(in []*katav1.LinuxThrottleDevice) (out []specs.LinuxThrottleDevice) {
	for _, t := range in {
		d := specs.LinuxThrottleDevice{Rate: t.GetRate()}
		d.Major, d.Minor = t.GetMajor(), t.GetMinor()
		out = append(out, d)
	}
	return out
}

func toSeccomp(in *katav1.LinuxSeccomp) *specs.LinuxSeccomp {
	if in == nil {
		return nil
	}
	s := &specs.LinuxSeccomp{DefaultAction: specs.LinuxSeccompAction(in.GetDefaultAction())}
	for _, a := range in.GetArchitectures() {
		s.Architectures = append(s.Architectures, specs.Arch(a))
	}
	for _, f := range in.GetFlags() {
		s.Flags = append(s.Flags, specs.LinuxSeccompFlag(f))
	}
	for _, c := range in.GetSyscalls() {
		rule := specs.LinuxSyscall{Names: c.GetNames(), Action: specs.LinuxSeccompAction(c.GetAction())}
		if e, ok := c.GetErrnoRet().(*katav1.LinuxSyscall_Errnoret); ok {
			n := uint(e.Errnoret)
			rule.ErrnoRet = &n
		}
		for _, a := range c.GetArgs() {
			rule.Args = append(rule.Args, specs.LinuxSeccompArg{Index: uint(a.GetIndex()), Value: a.GetValue(), ValueTwo: a.GetValueTwo(), Op: specs.LinuxSeccompOperator(a.GetOp())})
		}
		s.Syscalls = append(s.Syscalls, rule)
	}
	return s
}
