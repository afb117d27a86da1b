package control

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
)

// maxOOMScore is the kernel's.
const maxOOMScore = 1000

// limited is a request that names limits.
type limited interface {
	GetMemoryBytes() uint64
	GetMemorySwapBytes() int64
	GetMemoryReservationBytes() uint64
	GetCpus() float64
	GetCpuShares() uint64
	GetCpusetCpus() string
	GetCpusetMems() string
	GetPids() int64
}

// resources returns the limits that a request names. memory is the limit of memory that holds when
// the request has none; 0 is none.
func resources(req limited, memory int64) (*specs.LinuxResources, error) {
	l := ocispec.Limits{
		Memory: bytesOf(req.GetMemoryBytes()), CPUs: req.GetCpus(), Pids: max(req.GetPids(), 0), Shares: req.GetCpuShares(), Cpuset: req.GetCpusetCpus(),
	}
	res, err := l.Resources()
	if err != nil {
		return nil, err
	}
	if l.Memory > 0 {
		memory = l.Memory
	}
	if mems := req.GetCpusetMems(); mems != "" {
		if res.CPU == nil {
			res.CPU = &specs.LinuxCPU{}
		}
		res.CPU.Mems = mems
	}
	swap, reserved := req.GetMemorySwapBytes(), bytesOf(req.GetMemoryReservationBytes())
	if res.Memory == nil && (swap != 0 || reserved > 0) {
		res.Memory = &specs.LinuxMemory{}
	}
	if swap != 0 {
		switch {
		case memory == 0:
			return nil, invalid.Errorf("a swap limit needs a memory limit")
		case swap != -1 && swap < memory:
			return nil, invalid.Errorf("%d bytes of memory and swap together are less than the %d bytes of memory", swap, memory)
		}
		res.Memory.Swap = &swap
	}
	if reserved > 0 {
		if memory > 0 && reserved > memory {
			return nil, invalid.Errorf("the memory reservation of %d bytes exceeds the limit of %d", reserved, memory)
		}
		res.Memory.Reservation = &reserved
	}
	return res, nil
}

// limits puts the request's limits into s.
func limits(s *specs.Spec, req *longshorev1.CreateRequest) error {
	if req.GetPids() < 0 {
		return invalid.Errorf("a limit of %d processes", req.GetPids())
	}
	res, err := resources(req, 0)
	if err != nil {
		return err
	}
	res.Devices = s.Linux.Resources.Devices
	s.Linux.Resources = res
	if score := int(req.GetOomScoreAdj()); score != 0 {
		if score < -maxOOMScore || score > maxOOMScore {
			return invalid.Errorf("oom score %d is not between -%d and %d", score, maxOOMScore, maxOOMScore)
		}
		s.Process.OOMScoreAdj = &score
	}
	for _, u := range req.GetUlimits() {
		r, err := ocispec.Rlimit(u)
		if err != nil {
			return err
		}
		s.Process.Rlimits = append(s.Process.Rlimits, r)
	}
	return nil
}

// bytesOf returns n as the int64 that specs have; larger ones are no limit that matters.
func bytesOf(n uint64) int64 { return int64(min(n, 1<<62)) }

// confine puts the request's system call filter, profile and hidden paths into s. The capabilities
// must be set.
func confine(s *specs.Spec, req *longshorev1.CreateRequest) error {
	switch {
	case req.GetSeccompUnconfined() && len(req.GetSeccomp()) > 0:
		return invalid.Errorf("a system call filter and no filter cannot be combined")
	case req.GetPrivileged():
		if err := ocispec.AllPrivileges(s); err != nil {
			return err
		}
	}
	ocispec.AppArmor(s, req.GetApparmor())
	if req.GetUnmasked() {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	}
	switch {
	case len(req.GetSeccomp()) > 0:
		return ocispec.LoadSeccomp(s, req.GetSeccomp())
	case req.GetSeccompUnconfined() || req.GetPrivileged():
		return nil
	}
	return ocispec.DefaultSeccomp(s)
}

// addDevices puts the request's devices of the host into s. Those of the Container Device
// Interface are a policy's affair: see cdiNames.
func addDevices(s *specs.Spec, req *longshorev1.CreateRequest) error {
	for _, name := range req.GetDevices() {
		if !strings.HasPrefix(name, "/") {
			continue
		}
		d, err := ocispec.ParseDevice(name)
		if err != nil {
			return err
		}
		devices, rules, err := ocispec.HostDevice(d)
		if err != nil {
			return err
		}
		ocispec.AddDevice(s, devices, rules)
	}
	return nil
}

// cdiNames returns those of the request's devices that are named as the Container Device Interface
// does.
func cdiNames(req *longshorev1.CreateRequest) ([]string, error) {
	names := slices.DeleteFunc(slices.Clone(req.GetDevices()), func(n string) bool { return strings.HasPrefix(n, "/") })
	return names, ocispec.CheckCDI(names)
}

// memoryMounts are the request's file systems in memory, and /dev/shm where it has another size.
func memoryMounts(req *longshorev1.CreateRequest) (list []specs.Mount, err error) {
	for _, t := range req.GetTmpfs() {
		options := []string{"nosuid", "nodev", "noexec", "mode=1777"}
		for _, o := range t.GetOptions() {
			if !ocispec.TmpfsOption(o) {
				return nil, invalid.Errorf("tmpfs %s: option %q", t.GetTarget(), o)
			}
			options = append(options, o)
		}
		list = append(list, specs.Mount{Destination: path.Clean(t.GetTarget()), Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	if n := bytesOf(req.GetShmBytes()); n > 0 {
		if req.GetIpc() == "host" {
			return nil, invalid.Errorf("the size of /dev/shm is the host's with ipc host")
		}
		list = append(list, specs.Mount{
			Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.FormatInt(n, 10)},
		})
	}
	return list, nil
}

// namespaces puts the request's namespaces into cfg; its network is not among them.
func namespaces(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	for _, n := range []struct {
		kind, asked string
		ns          *core.Namespace
	}{{"pid", req.GetPid(), &cfg.Namespaces.PID}, {"ipc", req.GetIpc(), &cfg.Namespaces.IPC}, {"uts", req.GetUts(), &cfg.Namespaces.UTS}} {
		switch n.asked {
		case "", "private":
		case "host":
			n.ns.Mode = core.Host
		default:
			return invalid.Errorf("%s namespace %q is neither host nor private: other namespaces cannot be joined", n.kind, n.asked)
		}
	}
	if req.GetUts() == "host" && req.GetHostname() != "" {
		return invalid.Errorf("a host name cannot be combined with uts host")
	}
	if _, err := sysctl.ParseAll(req.GetSysctls()); err != nil {
		return err
	}
	return nil
}

// ownNetwork reports whether the container gets interfaces of its own.
func ownNetwork(req *longshorev1.CreateRequest) bool {
	return req.GetNetwork() != core.NetworkNone && req.GetNetwork() != "host"
}

// maxAliases bounds the further names of a container on a network.
const maxAliases = 64

// address puts the request's own address and names on its network into cfg.
func address(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	if req.GetIp() == "" && req.GetMac() == "" && len(req.GetNetworkAliases()) == 0 {
		return nil
	}
	if !ownNetwork(req) {
		return invalid.Errorf("an address or an alias cannot be combined with network %s", req.GetNetwork())
	}
	first := &longshorev1.NetworkAttachment{Network: cfg.Network.Name, Mac: req.GetMac(), Aliases: req.GetNetworkAliases()}
	if req.GetIp() != "" {
		first.Addresses = []string{req.GetIp()}
	}
	a, err := attachment(first)
	if cfg.Network.Name == "" { // as the default network is named everywhere else
		a.Network = ""
	}
	cfg.Network.Attach = []core.Attachment{a}
	return err
}

// maxFurther bounds the networks of a container besides its first.
const maxFurther = 32

// further puts the networks besides the first into cfg.
func further(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	list := req.GetFurtherNetworks()
	if len(list) == 0 {
		return nil
	}
	if !ownNetwork(req) {
		return invalid.Errorf("another network cannot be combined with network %s", req.GetNetwork())
	}
	if len(list) > maxFurther {
		return invalid.Errorf("%d networks, at most %d", len(list)+1, maxFurther+1)
	}
	for _, n := range list {
		a, err := attachment(n)
		if err != nil {
			return err
		}
		if cfg.Network.On(a.Network) >= 0 {
			return invalid.Errorf("network %s is named twice", a.Network)
		}
		cfg.Network = cfg.Network.With(a)
	}
	return nil
}

// attachment checks how a container is to be on a network.
func attachment(n *longshorev1.NetworkAttachment) (core.Attachment, error) {
	a := core.Attachment{Network: networkName(n.GetNetwork()), Interface: n.GetInterface(), MAC: n.GetMac(), Names: n.GetAliases()}
	if a.Network == core.NetworkNone || a.Network == "host" {
		return a, invalid.Errorf("network %s cannot be one of several", a.Network)
	}
	if len(a.Names) > maxAliases {
		return a, invalid.Errorf("%d aliases, at most %d", len(a.Names), maxAliases)
	}
	for _, n := range a.Names {
		if !core.IsName(n, "_.-", maxHostName) {
			return a, invalid.Errorf("alias %q is not a name: letters, digits and _.-", n)
		}
	}
	if len(a.Names) > 0 && a.Network == core.NetworkDefault {
		return a, invalid.Errorf("an alias needs a network that was made by network create: the default one has no name server")
	}
	for _, s := range n.GetAddresses() {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return a, invalid.Errorf("address %q: %v", s, err)
		}
		if slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool { return p.Addr().Is4() == ip.Unmap().Is4() }) {
			return a, invalid.Errorf("address %s: one of this family is enough", s)
		}
		a.Addrs = append(a.Addrs, netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
	}
	return a, nil
}

// networkName returns the name of a network in records.
func networkName(name string) string {
	if name == "" || name == bridgeNetwork {
		return core.NetworkDefault
	}
	return name
}

// bridgeNetwork is other tools' name of the default network.
const bridgeNetwork = "bridge"

// maxHostName is the length of the longest name in a DNS question.
const maxHostName = 253

// checkNetwork refuses a network that does not exist, an address that is in use, and ports where
// nothing comes in.
func (s *Server) checkNetwork(ctx context.Context, cfg core.SandboxConfig, publishAll bool) error {
	internal := ""
	out := false
	for _, a := range cfg.Network.Attached() {
		if networkName(a.Network) == core.NetworkDefault {
			out = true
			continue
		}
		def, err := s.defined(a.Network)
		if err != nil {
			return err
		}
		if out = out || !def.Internal; def.Internal && internal == "" {
			internal = def.Name
		}
	}
	if internal != "" && !out && (publishAll || len(cfg.Network.Ports) > 0) {
		return invalid.Errorf("ports cannot be published from network %s, which is internal", internal)
	}
	return s.freeAddresses(ctx, cfg.Network.Attached()...)
}

// freeAddresses refuses addresses that a container has, and says which one.
func (s *Server) freeAddresses(ctx context.Context, list ...core.Attachment) error {
	for _, a := range list {
		if len(a.Addrs) == 0 {
			continue
		}
		members, err := s.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members[networkName(a.Network)] {
			for _, p := range a.Addrs {
				if m.sandbox.State == core.SandboxReady && slices.Contains(m.sandbox.Network.Addrs, p.Addr()) {
					return fmt.Errorf("address %s is in use by container %s: %w", p.Addr(), m.container.Key, errdefs.ErrAlreadyExists)
				}
			}
		}
	}
	return nil
}

// hostLines are the request's lines of /etc/hosts, names by their addresses.
func hostLines(req *longshorev1.CreateRequest) (map[string][]string, error) {
	lines := map[string][]string{}
	for _, h := range req.GetHosts() {
		name, addr, ok := strings.Cut(h, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\n#") {
			return nil, invalid.Errorf("host %q is not NAME:ADDRESS", h)
		}
		if addr == core.HostGateway && ownNetwork(req) {
			lines[addr] = append(lines[addr], name)
			continue
		}
		ip, err := netip.ParseAddr(strings.Trim(addr, "[]"))
		if err != nil {
			return nil, invalid.Errorf("host %q: %v", h, err)
		}
		lines[ip.String()] = append(lines[ip.String()], name)
	}
	return lines, nil
}

// exposed are the ports that the image and the request name, without host ports, each as often as
// it is not among those that are published already.
func exposed(img *imagespec.ImageConfig, req *longshorev1.CreateRequest, published []core.Port) ([]core.Port, error) {
	var list []core.Port
	for _, e := range append(slices.Sorted(maps.Keys(img.ExposedPorts)), req.GetExpose()...) {
		span, proto, _ := strings.Cut(e, "/")
		first, last, isSpan := strings.Cut(span, "-")
		if !isSpan {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from == 0 || to < from {
			return nil, invalid.Errorf("port %q is not PORT[-PORT][/PROTOCOL]", e)
		}
		for n := from; n <= to; n++ {
			more, err := toCorePorts([]*longshorev1.Port{{Protocol: proto, Container: uint32(n)}})
			if err != nil {
				return nil, err
			}
			same := func(p core.Port) bool { return p.Proto == more[0].Proto && p.Container == more[0].Container }
			if !slices.ContainsFunc(published, same) && !slices.ContainsFunc(list, same) {
				list = append(list, more[0])
			}
		}
	}
	if len(list) > maxChosenPorts {
		return nil, invalid.Errorf("%d ports need a chosen host port, at most %d", len(list), maxChosenPorts)
	}
	return list, nil
}

// maxChosenPorts bounds how many ports of the host publish_all takes.
const maxChosenPorts = 256
