package present

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/dockertypes"
)

// hostConfig returns the part of the configuration that depends on the host. Limits are those of the spec, which update
// changes; the rest is as the request has it.
func hostConfig(o object, mounted []mountPoint) *dockertypes.HostConfig {
	shown := o.object("shown")
	res := o.object("spec", "linux", "resources")
	h := &dockertypes.HostConfig{
		LogConfig: dockertypes.LogConfig{Type: "longshore", Config: map[string]string{}}, NetworkMode: networkMode(o), PortBindings: bindings(o),
		AutoRemove: o.boolean("auto_remove"), VolumesFrom: shown.texts("volumes_from"), Annotations: shown.textMap("annotations"),
		CapAdd: capabilities(shown.texts("cap_add")), CapDrop: capabilities(shown.texts("cap_drop")), CgroupnsMode: cgroupns(o), DNS: orNone(shown.texts("dns")),
		DNSOptions: orNone(shown.texts("dns_options")), DNSSearch: orNone(shown.texts("dns_search")), ExtraHosts: shown.texts("hosts"),
		GroupAdd: shown.texts("groups"), IpcMode: cmp.Or(shown.text("ipc"), "private"), OomScoreAdj: int(o.number("spec", "process", "oomScoreAdj")),
		PidMode: shown.text("pid"), Privileged: o.boolean("privileged"), PublishAllPorts: shown.boolean("publish_all"),
		ReadonlyRootfs: o.boolean("spec", "root", "readonly"), SecurityOpt: shown.texts("security"), Tmpfs: shown.textMap("tmpfs"), UTSMode: shown.text("uts"),
		UsernsMode: usernsMode(o), ShmSize: shmSize(o), Sysctls: o.textMap("spec", "linux", "sysctl"), Runtime: o.text("runtime"),
		MaskedPaths: o.texts("spec", "linux", "maskedPaths"), ReadonlyPaths: o.texts("spec", "linux", "readonlyPaths"),
		Resources: dockertypes.Resources{
			CPUShares: res.number("cpu", "shares"), Memory: res.number("memory", "limit"), NanoCPUs: nanoCPUs(o), CpusetCpus: res.text("cpu", "cpus"),
			CpusetMems: res.text("cpu", "mems"), MemoryReservation: res.number("memory", "reservation"), MemorySwap: res.number("memory", "swap"),
			Ulimits: ulimits(o), DeviceCgroupRules: shown.texts("device_cgroup_rules"),
		},
	}
	if o.boolean("config", "init") {
		yes := true
		h.Init = &yes
	}
	if limit := res.number("pids", "limit"); limit > 0 {
		h.PidsLimit = &limit
	}
	blockIO(h, res)
	if n := res.number("memory", "swappiness"); res.has("memory", "swappiness") {
		h.MemorySwappiness = &n
	}
	if never := res.boolean("memory", "disableOOMKiller"); never {
		h.OomKillDisable = &never
	}
	if ofQuota := shown.boolean("cpu_quota") || hasQuota(res.object("cpu")); ofQuota || shown == nil {
		h.CPUQuota, h.CPUPeriod = res.number("cpu", "quota"), res.number("cpu", "period")
		if shown != nil {
			h.NanoCPUs = 0
		}
	}
	if shown == nil { // another owner made it
		h.Annotations = o.textMap("spec", "annotations")
	}
	h.Devices, h.DeviceRequests = devices(shown.texts("devices"))
	if h.Binds = shown.texts("binds"); shown == nil || len(h.VolumesFrom) > 0 {
		h.Binds = binds(mounted)
	}
	h.Mounts = askedMounts(shown.objects("mounts"))
	for _, l := range shown.texts("links") {
		target, alias, _ := strings.Cut(l, ":")
		h.Links = append(h.Links, "/"+target+":/"+o.text("name")+"/"+alias)
	}
	return h
}

// askedMounts returns the mounts of --mount.
func askedMounts(asked []object) (list []dockertypes.Mount) {
	for _, m := range asked {
		mount := dockertypes.Mount{Type: m.text("type"), Source: m.text("source"), Target: m.text("target"), ReadOnly: m.boolean("read_only")}
		if p := m.text("propagation"); p != "" {
			mount.BindOptions = &dockertypes.BindOptions{Propagation: p}
		}
		if sub := m.text("sub_path"); sub != "" && mount.Type == "image" {
			mount.ImageOptions = &dockertypes.ImageOptions{Subpath: sub}
		} else if m.boolean("no_copy") || m.text("sub_path") != "" {
			mount.VolumeOptions = &dockertypes.VolumeOptions{NoCopy: m.boolean("no_copy"), Subpath: m.text("sub_path")}
		}
		list = append(list, mount)
	}
	return list
}

// hasQuota reports whether an update has set the quota or the period of a CPU limit by itself. A number of CPUs sets both, with a
// period of 100 ms.
func hasQuota(cpu object) bool {
	quota, period := cpu.number("quota"), cpu.number("period")
	return (quota != 0 || period != 0) && (quota <= 0 || period != 100_000)
}

// binds returns the mounts of directories and of named volumes in the form of -v.
func binds(mounted []mountPoint) (list []string) {
	for _, m := range mounted {
		if m.anonymous || m.Type == "tmpfs" || m.Type == "image" {
			continue
		}
		bind := m.Source + ":" + m.Destination
		if m.Type == "volume" {
			bind = m.Name + ":" + m.Destination
		}
		if !m.RW {
			bind += ":ro"
		}
		list = append(list, bind)
	}
	return list
}

// blockIO sets the limits of block devices.
func blockIO(h *dockertypes.HostConfig, resources object) {
	io := resources.object("blockIO")
	h.BlkioWeight = uint16(io.number("weight")) // the kernel's bound is 1000
	h.BlkioWeightDevice = []*dockertypes.WeightDevice{}
	for _, d := range io.objects("weightDevice") {
		h.BlkioWeightDevice = append(h.BlkioWeightDevice, &dockertypes.WeightDevice{Path: blockDevice(d), Weight: uint16(d.number("weight"))})
	}
	rates := func(list string) []*dockertypes.ThrottleDevice {
		out := []*dockertypes.ThrottleDevice{}
		for _, d := range io.objects(list) {
			out = append(out, &dockertypes.ThrottleDevice{Path: blockDevice(d), Rate: uint64(max(d.number("rate"), 0))})
		}
		return out
	}
	h.BlkioDeviceReadBps, h.BlkioDeviceWriteBps = rates("throttleReadBpsDevice"), rates("throttleWriteBpsDevice")
	h.BlkioDeviceReadIOps, h.BlkioDeviceWriteIOps = rates("throttleReadIOPSDevice"), rates("throttleWriteIOPSDevice")
}

// blockDevice returns the name that udev makes of a device's numbers. The spec does not have its name in the request.
func blockDevice(d object) string {
	return fmt.Sprintf("/dev/block/%d:%d", d.number("major"), d.number("minor"))
}

// nanoCPUs returns the CPU quota in docker's unit, billionths of a CPU.
func nanoCPUs(o object) int64 {
	quota, period := o.number("spec", "linux", "resources", "cpu", "quota"), o.number("spec", "linux", "resources", "cpu", "period")
	if quota <= 0 || period <= 0 {
		return 0
	}
	return int64(math.Round(float64(quota) / float64(period) * 1e9))
}

// networkMode returns the name of the first network, as in docker's document.
func networkMode(o object) string {
	if joined := o.object("shown").text("network"); joined != "" {
		return joined
	}
	if names := o.texts("network", "names"); len(names) > 0 {
		return names[0]
	}
	return o.text("network", "mode")
}

// usernsMode returns "private" if the container has a user namespace of its own, otherwise "".
func usernsMode(o object) string {
	if len(o.objects("spec", "linux", "uidMappings")) > 0 {
		return "private"
	}
	return ""
}

// cgroupns returns the kind of the container's cgroup namespace.
func cgroupns(o object) string {
	for _, n := range o.objects("spec", "linux", "namespaces") {
		if n.text("type") == "cgroup" {
			return "private"
		}
	}
	return "host"
}

// capabilities returns names of capabilities in docker's form, with the prefix.
func capabilities(names []string) (list []string) {
	for _, n := range names {
		n = strings.ToUpper(n)
		if n != "ALL" && !strings.HasPrefix(n, "CAP_") {
			n = "CAP_" + n
		}
		list = append(list, n)
	}
	return list
}

// shmSize returns the size of /dev/shm, 0 if the container has none of its own.
func shmSize(o object) int64 {
	for _, m := range o.objects("spec", "mounts") {
		if m.text("destination") != "/dev/shm" {
			continue
		}
		for _, option := range m.texts("options") {
			if size, ok := strings.CutPrefix(option, "size="); ok {
				unit := int64(1)
				if kilo, ok := strings.CutSuffix(size, "k"); ok {
					size, unit = kilo, 1<<10
				}
				n, _ := strconv.ParseInt(size, 10, 64) // another owner's spec may have another form: 0, as for no size
				return n * unit
			}
		}
	}
	return 0
}

// ulimits returns the resource limits of the request and of the node's configuration.
func ulimits(o object) []*dockertypes.Ulimit {
	list := []*dockertypes.Ulimit{}
	asked := o.object("shown").texts("ulimits")
	for _, l := range o.objects("spec", "process", "rlimits") {
		name := strings.ToLower(strings.TrimPrefix(l.text("type"), "RLIMIT_"))
		if name == "core" && o.has("shown") && !slices.ContainsFunc(asked, func(s string) bool { return strings.HasPrefix(s, name+"=") }) {
			continue // every container has this one
		}
		list = append(list, &dockertypes.Ulimit{Name: name, Soft: limit(l.at("soft")), Hard: limit(l.at("hard"))})
	}
	return list
}

// limit returns a resource limit, -1 for none.
func limit(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	}
	return -1
}

// devices returns the devices of the host, and the requests for devices of the Container Device Interface.
func devices(asked []string) ([]dockertypes.DeviceMapping, []dockertypes.DeviceRequest) {
	list := []dockertypes.DeviceMapping{}
	var named []string
	for _, d := range asked {
		if !strings.HasPrefix(d, "/") {
			named = append(named, d)
			continue
		}
		parts := strings.Split(d, ":")
		m := dockertypes.DeviceMapping{PathOnHost: parts[0], PathInContainer: parts[0], CgroupPermissions: "rwm"}
		for _, p := range parts[1:] {
			if strings.HasPrefix(p, "/") {
				m.PathInContainer = p
			} else {
				m.CgroupPermissions = p
			}
		}
		list = append(list, m)
	}
	if named == nil {
		return list, nil
	}
	return list, []dockertypes.DeviceRequest{{Driver: "cdi", DeviceIDs: named}}
}

// bindings returns the host ports of the request. A port that was left to the agent is "".
func bindings(o object) dockertypes.PortMap {
	out := dockertypes.PortMap{}
	for _, p := range o.objects("network", "config_ports") {
		b := dockertypes.PortBinding{HostIP: p.text("host_ip")}
		if n := p.number("host"); n != 0 {
			b.HostPort = strconv.FormatInt(n, 10)
		}
		out[portOf(p)] = append(out[portOf(p)], b)
	}
	return out
}

// portOf returns the container's port of a forwarded port, such as 80/tcp.
func portOf(p object) dockertypes.Port {
	return dockertypes.Port(strconv.FormatInt(p.number("container"), 10) + "/" + p.text("proto"))
}
