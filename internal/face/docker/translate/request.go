package translate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
)

// Request is a request in the node's words.
type Request struct {
	*longshorev1.CreateRequest
	Mounts Mounts
	// CgroupParent is the parent of the container's cgroup; "" is the node's.
	CgroupParent string
	// Spec changes the container's spec.
	Spec func(*specs.Spec)
	// Interface is the name of the interface on the first network; "" leaves it to the network.
	Interface string
	// EndpointLinks are links, NAME:ALIAS, to containers on the same networks, which need not exist.
	EndpointLinks []string
}

// Request returns a completed request in the node's words, for a container of a name. network returns the name of a network by its
// name or id.
func (c *Create) Request(name string, network func(string) (string, error)) (Request, error) {
	h := c.HostConfig
	m, err := c.mounts()
	if err != nil {
		return Request{}, err
	}
	disk, err := diskLimit(h.StorageOpt)
	if err != nil {
		return Request{}, err
	}
	req := &longshorev1.CreateRequest{
		Name: name, Image: c.Image, Workdir: c.WorkingDir, User: c.User, Tty: c.Tty, Stdin: c.OpenStdin, StdinOnce: c.OpenStdin && c.StdinOnce,
		Hostname: c.Hostname, Domainname: c.Domainname, Labels: c.Labels, StopSignal: c.StopSignal, Env: environment(c.Env), Mounts: m.List, Tmpfs: m.Tmpfs,
		Privileged: h.Privileged, CapAdd: h.CapAdd, CapDrop: h.CapDrop, ReadOnly: h.ReadonlyRootfs, Init: h.Init != nil && *h.Init, Runtime: runtimeOf(h.Runtime),
		AutoRemove: h.AutoRemove, NewPrivileges: true, Sysctls: h.Sysctls, Groups: h.GroupAdd,
		CpusetCpus: h.CpusetCpus, CpusetMems: h.CpusetMems, CpuShares: uint64(max(h.CPUShares, 0)), MemoryBytes: uint64(max(h.Memory, 0)), MemorySwapBytes: h.MemorySwap,
		MemoryReservationBytes: uint64(max(h.MemoryReservation, 0)), CpuQuota: h.CPUQuota, CpuPeriod: uint64(max(h.CPUPeriod, 0)), Cpus: float64(h.NanoCPUs) / 1e9,
		OomScoreAdj: int32(h.OomScoreAdj), Annotations: h.Annotations, Links: links(h.Links), VolumesFrom: h.VolumesFrom, PublishAll: h.PublishAllPorts,
		Pid: mode(h.PidMode), Ipc: h.IpcMode, Uts: h.UTSMode, Cgroupns: h.CgroupnsMode, Userns: mode(h.UsernsMode), DeviceCgroupRules: h.DeviceCgroupRules,
		BlkioWeight: uint32(h.BlkioWeight), Systemd: "false", NoLog: h.LogConfig.Type == "none",
		DiskBytes: disk, Restart: policy(h.RestartPolicy), OomKillDisable: h.OomKillDisable != nil && *h.OomKillDisable,
	}
	if h.IpcMode == "private" || h.IpcMode == "shareable" {
		req.ShmBytes = uint64(max(h.ShmSize, 0)) // others have the size of the namespace that they join
	}
	if len(h.DNS)+len(h.DNSSearch)+len(h.DNSOptions) > 0 {
		req.Dns = &longshorev1.Dns{Servers: h.DNS, Searches: h.DNSSearch, Options: h.DNSOptions}
	}
	if h.IpcMode == "none" {
		req.Ipc = "private" // without /dev/shm
	}
	if h.MemorySwap != 0 && h.Memory == 0 {
		return Request{}, invalid.Errorf("You should always set the Memory limit when using Memoryswap limit, see usage")
	}
	if h.PidsLimit != nil {
		req.Pids = *h.PidsLimit
	}
	if n := h.MemorySwappiness; n != nil {
		if *n < 0 || *n > 100 {
			return Request{}, invalid.Errorf("invalid value: %d. valid memory swappiness range is 0-100", *n)
		}
		v := uint64(*n)
		req.MemorySwappiness = &v
	}
	if size := h.ConsoleSize; c.Tty && size[0] > 0 && size[1] > 0 {
		req.Size = &longshorev1.Size{Rows: uint32(min(size[0], 0xffff)), Cols: uint32(min(size[1], 0xffff))}
	}
	if c.StopTimeout != nil {
		req.StopGrace = durationpb.New(Grace(*c.StopTimeout))
	}
	for _, p := range slices.Sorted(maps.Keys(c.ExposedPorts)) {
		req.Expose = append(req.Expose, string(p))
	}
	for _, set := range []func(*longshorev1.CreateRequest) error{c.command, c.devices, c.security, c.logging, c.health} {
		if err := set(req); err != nil {
			return Request{}, err
		}
	}
	r := Request{CreateRequest: req, Mounts: m, CgroupParent: h.CgroupParent, Spec: c.spec()}
	return r, c.networks(&r, network)
}

// forever is a grace period without an end.
const forever = 100 * 365 * 24 * time.Hour

// Grace returns the grace period of a number of seconds. A negative one has no end.
func Grace(seconds int) time.Duration {
	if seconds < 0 || seconds > int(forever/time.Second) {
		return forever
	}
	return time.Duration(seconds) * time.Second
}

// links returns links as NAME[:ALIAS]. A client may send them as inspect shows them: /NAME:/CONTAINER/ALIAS.
func links(list []string) (out []string) {
	for _, l := range list {
		name, alias, ok := strings.Cut(strings.TrimPrefix(l, "/"), ":")
		if ok {
			name += ":" + alias[strings.LastIndexByte(alias, '/')+1:]
		}
		out = append(out, name)
	}
	return out
}

func mode(text string) string {
	if text == defaultMode {
		return ""
	}
	return text
}

// runtimeOf returns the node's runtime: runc's name is dockerd's default, which is the node's default here.
func runtimeOf(name string) string {
	if name == "runc" || name == "io.containerd.runc.v2" {
		return ""
	}
	return name
}

func policy(p dockertypes.RestartPolicy) string {
	if p.Name == "on-failure" && p.MaximumRetryCount > 0 {
		return p.Name + ":" + strconv.Itoa(p.MaximumRetryCount)
	}
	return p.Name
}

// environment returns the variables with a value. Those without one remove the image's variable, which a container here keeps.
func environment(env []string) (list []string) {
	for _, e := range env {
		if name, _, ok := strings.Cut(e, "="); ok && name != "" {
			list = append(list, e)
		}
	}
	return list
}

// command sets the entry point and the command. The node's entry point is one word, so further ones come before the command.
func (c *Create) command(req *longshorev1.CreateRequest) error {
	switch {
	case len(c.Entrypoint) == 1 && c.Entrypoint[0] == "":
		req.ClearEntrypoint = true
		req.Command = c.Cmd
	case len(c.Entrypoint) > 0:
		req.Entrypoint = c.Entrypoint[0]
		req.Command = append(slices.Clone([]string(c.Entrypoint[1:])), c.Cmd...)
	default:
		req.Command = c.Cmd
	}
	return nil
}

func (c *Create) devices(req *longshorev1.CreateRequest) error {
	h := c.HostConfig
	for _, d := range h.Devices {
		if d.PathOnHost == "" {
			return invalid.Errorf("a device has no PathOnHost")
		}
		text := d.PathOnHost
		if d.PathInContainer != "" {
			text += ":" + d.PathInContainer
		}
		if d.CgroupPermissions != "" {
			text += ":" + d.CgroupPermissions
		}
		req.Devices = append(req.Devices, text)
	}
	for _, r := range h.DeviceRequests {
		if r.Driver != "cdi" {
			return invalid.Errorf("could not select device driver %q with capabilities: %v: use the driver cdi with names of the Container Device Interface", r.Driver, r.Capabilities)
		}
		req.Devices = append(req.Devices, r.DeviceIDs...)
	}
	for _, u := range h.Ulimits {
		if u != nil {
			req.Ulimits = append(req.Ulimits, fmt.Sprintf("%s=%d:%d", u.Name, u.Soft, u.Hard))
		}
	}
	for _, w := range h.BlkioWeightDevice {
		if w != nil {
			req.BlkioWeightDevices = append(req.BlkioWeightDevices, &longshorev1.DeviceLimit{Path: w.Path, Value: uint64(w.Weight)})
		}
	}
	for _, kind := range []struct {
		from []*dockertypes.ThrottleDevice
		to   *[]*longshorev1.DeviceLimit
	}{
		{h.BlkioDeviceReadBps, &req.DeviceReadBps},
		{h.BlkioDeviceWriteBps, &req.DeviceWriteBps},
		{h.BlkioDeviceReadIOps, &req.DeviceReadIops},
		{h.BlkioDeviceWriteIOps, &req.DeviceWriteIops},
	} {
		for _, d := range kind.from {
			if d != nil {
				*kind.to = append(*kind.to, &longshorev1.DeviceLimit{Path: d.Path, Value: d.Rate})
			}
		}
	}
	return nil
}

func (c *Create) security(req *longshorev1.CreateRequest) error {
	for _, o := range c.HostConfig.SecurityOpt {
		name, value, ok := strings.Cut(o, "=")
		if !ok {
			name, value, _ = strings.Cut(o, ":")
		}
		switch name {
		case "no-new-privileges":
			req.NewPrivileges = value != "" && value != "true"
		case "seccomp":
			switch value {
			case "unconfined":
				req.SeccompUnconfined = true
			case "", "builtin":
			default:
				req.Seccomp = []byte(value)
			}
		case "apparmor":
			req.Apparmor = value
		case "label":
			req.Selinux = append(req.Selinux, value)
		case "landlock": // no option of dockerd's
			if req.Annotations = maps.Clone(req.Annotations); req.Annotations == nil {
				req.Annotations = map[string]string{}
			}
			req.Annotations[core.LandlockAnnotation] = value
		case "systempaths":
			req.Unmasked = value == "unconfined"
		default:
			return invalid.Errorf("invalid --security-opt 1: %q", o)
		}
	}
	if m := c.HostConfig.MaskedPaths; m != nil && len(m) == 0 && c.HostConfig.ReadonlyPaths != nil && len(c.HostConfig.ReadonlyPaths) == 0 {
		req.Unmasked = true
	}
	return nil
}

// spec returns the changes of the spec that a request of the node has no field for.
func (c *Create) spec() func(*specs.Spec) {
	masked, readonly := c.HostConfig.MaskedPaths, c.HostConfig.ReadonlyPaths
	if c.HostConfig.Privileged {
		masked, readonly = nil, nil
	}
	below, alone := c.recursion()
	return func(s *specs.Spec) {
		if c.HostConfig.IpcMode == "none" {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
		}
		for i, m := range s.Mounts {
			if below[m.Destination] { // a runtime that does not have rro takes ro
				s.Mounts[i].Options = append(s.Mounts[i].Options, "rro")
			}
			if at := slices.Index(m.Options, "rbind"); at >= 0 && alone[m.Destination] {
				s.Mounts[i].Options[at] = "bind"
			}
		}
		if s.Linux == nil {
			return
		}
		if masked != nil {
			s.Linux.MaskedPaths = masked
		}
		if readonly != nil {
			s.Linux.ReadonlyPaths = readonly
		}
	}
}

// maxLogFiles bounds the files of a log.
const maxLogFiles = 100

func (c *Create) logging(req *longshorev1.CreateRequest) error {
	l := c.HostConfig.LogConfig
	if !driver.Local(l.Type) {
		if _, err := driver.Parse(l.Type, l.Config); err != nil {
			return err
		}
		req.LogDriver, req.LogOptions = l.Type, l.Config
		return nil
	}
	if l.Type != "none" && !c.noDriver {
		req.LogDriver = l.Type
	}
	for name, value := range l.Config {
		switch name {
		case "max-size":
			n, err := bytesOf(value)
			if err != nil {
				return err
			}
			req.LogBytes = n
		case "max-file":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 {
				return invalid.Errorf("LogConfig max-file %q is not a number of files", value)
			}
			req.LogFiles = int32(min(n, maxLogFiles))
		case "compress", "mode", "max-buffer-size", "labels", "labels-regex", "env", "env-regex", "tag":
		default:
			return invalid.Errorf("unknown log opt '%s' for %s log driver", name, l.Type)
		}
	}
	return nil
}

// bytesOf reads a size such as 10m.
func bytesOf(text string) (int64, error) {
	lower := strings.ToLower(strings.TrimSuffix(strings.ToLower(text), "b"))
	unit := int64(1)
	for suffix, factor := range map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if number, ok := strings.CutSuffix(lower, suffix); ok {
			lower, unit = number, factor
			break
		}
	}
	n, err := strconv.ParseInt(lower, 10, 40)
	if err != nil || n <= 0 || n > (1<<62)/unit {
		return 0, invalid.Errorf("invalid size: %q", text)
	}
	return n * unit, nil
}

func (c *Create) health(req *longshorev1.CreateRequest) error {
	h := c.Healthcheck
	if h == nil {
		return nil
	}
	for name, d := range map[string]time.Duration{"Interval": h.Interval, "Timeout": h.Timeout, "StartPeriod": h.StartPeriod, "StartInterval": h.StartInterval} {
		if d != 0 && d < time.Millisecond {
			return invalid.Errorf("%s in Healthcheck cannot be less than 1ms", name)
		}
	}
	if h.Retries < 0 {
		return invalid.Errorf("Retries in Healthcheck cannot be negative")
	}
	req.Health = &longshorev1.HealthCheck{
		Test: h.Test, Interval: durationpb.New(h.Interval), Timeout: durationpb.New(h.Timeout), StartPeriod: durationpb.New(h.StartPeriod),
		StartInterval: durationpb.New(h.StartInterval), Retries: int32(min(h.Retries, 1<<30)),
	}
	return nil
}

func (c *Create) networks(req *Request, find func(string) (string, error)) error {
	h := c.HostConfig
	req.Hosts = h.ExtraHosts
	var err error
	if req.Ports, err = c.published(); err != nil {
		return err
	}
	ends := c.NetworkingConfig.EndpointsConfig
	if name, joins := strings.CutPrefix(h.NetworkMode, "container:"); joins {
		if len(ends) > 0 {
			return invalid.Errorf("conflicting options: cannot attach both user-defined and non-user-defined network-modes")
		}
		req.Network = "container:" + name
		return nil
	}
	first, err := find(h.NetworkMode)
	if err != nil {
		return err
	}
	if first == hostMode || first == noneMode {
		if len(ends) > 1 {
			return invalid.Errorf("conflicting options: cannot attach both user-defined and non-user-defined network-modes")
		}
		req.Network, req.Ports, req.PublishAll = first, nil, false // dockerd ignores ports without a network
		return nil
	}
	var list []*longshorev1.NetworkAttachment
	priority := map[string]int{}
	for _, ref := range slices.Sorted(maps.Keys(ends)) {
		name, err := find(ref)
		if err != nil {
			return err
		}
		a, err := Attachment(name, ends[ref])
		if err != nil {
			return err
		}
		list = append(list, a)
		if e := ends[ref]; e != nil {
			priority[name] = e.GwPriority
			req.EndpointLinks = append(req.EndpointLinks, e.Links...)
		}
	}
	if len(list) > 0 && !slices.ContainsFunc(list, func(a *longshorev1.NetworkAttachment) bool { return a.GetNetwork() == first }) {
		first = list[0].GetNetwork()
	}
	// The node's default route is that of the first network.
	for _, a := range list {
		if name := a.GetNetwork(); priority[name] > priority[first] {
			first = name
		}
	}
	req.Network = first
	for _, a := range list {
		if a.GetNetwork() != first {
			req.FurtherNetworks = append(req.FurtherNetworks, a)
			continue
		}
		req.Interface = a.GetInterface()
		req.NetworkAliases, req.Mac = a.GetAliases(), a.GetMac()
		for _, addr := range a.GetAddresses() {
			if strings.Contains(addr, ":") {
				req.Ip6 = addr
			} else {
				req.Ip = addr
			}
		}
	}
	return nil
}

// Attachment returns the settings of a container on a network.
func Attachment(network string, e *dockertypes.Endpoint) (*longshorev1.NetworkAttachment, error) {
	a := &longshorev1.NetworkAttachment{Network: network}
	if e == nil {
		return a, nil
	}
	a.Aliases, a.Mac = slices.DeleteFunc(slices.Clone(e.Aliases), func(s string) bool { return s == "" }), e.MacAddress
	a.Interface = e.DriverOpts[dockertypes.EndpointInterface]
	if i := e.IPAMConfig; i != nil {
		a.Addresses = slices.DeleteFunc([]string{i.IPv4Address, i.IPv6Address}, func(s string) bool { return s == "" })
		if len(i.LinkLocalIPs) > 0 {
			return nil, invalid.Errorf("LinkLocalIPs are not possible: the kernel chooses link-local addresses")
		}
	}
	if network == bridgeMode {
		switch {
		case len(a.GetAddresses()) > 0:
			return nil, invalid.Errorf("invalid endpoint settings:\nuser-specified IP address is supported on user-defined networks only")
		case len(a.GetAliases()) > 0:
			return nil, invalid.Errorf("invalid endpoint settings:\nnetwork-scoped aliases are only supported for user-defined networks")
		}
	}
	return a, nil
}

// Read reads the body of a create request.
func Read(data []byte) (*Create, error) {
	c := &Create{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, invalid.Errorf("invalid JSON: %v", err)
	}
	return c, nil
}
