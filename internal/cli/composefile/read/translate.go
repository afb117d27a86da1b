package read

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/restart"
)

// translator makes a composefile.Project of compose-go's.
type translator struct {
	p       *types.Project
	where   *locator
	env     map[string]string
	refused []string
	notes   []string
}

// project translates everything, and refuses all that is not possible at once.
func (t *translator) project() (*composefile.Project, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	out := &composefile.Project{Name: t.p.Name, Dir: t.p.WorkingDir, Files: t.p.ComposeFiles}
	for _, key := range slices.Sorted(maps.Keys(t.p.Networks)) {
		out.Networks = append(out.Networks, t.network(key, t.p.Networks[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(t.p.Volumes)) {
		out.Volumes = append(out.Volumes, t.volume(key, t.p.Volumes[key]))
	}
	for _, name := range t.p.ServiceNames() {
		s, err := t.service(t.p.Services[name])
		if err != nil {
			return nil, err
		}
		out.Services = append(out.Services, s)
	}
	if len(t.refused) > 0 {
		return nil, &composefile.RefusedError{Reasons: t.refused}
	}
	out.Notes = t.notes
	return out, nil
}

// labels returns the user's labels together with the project's.
func (t *translator) labels(own map[string]string, more ...string) map[string]string {
	list := map[string]string{}
	maps.Copy(list, own)
	list[composefile.LabelProject] = t.p.Name
	for i := 0; i+1 < len(more); i += 2 {
		list[more[i]] = more[i+1]
	}
	return list
}

func (t *translator) network(key string, n types.NetworkConfig) composefile.Network {
	out := composefile.Network{
		Key: key, External: bool(n.External), At: t.where.at("networks", key),
		Request: &longshorev1.CreateNetworkRequest{Name: n.Name, Internal: n.Internal, Labels: t.labels(n.Labels, composefile.LabelNetwork, key)},
	}
	at := func(below ...string) []string { return append([]string{"networks", key}, below...) }
	if n.External {
		return out
	}
	if n.Driver != "" && n.Driver != "bridge" && n.Driver != "default" {
		t.refuse(at("driver"), fmt.Sprintf("the driver is bridge, not %q", n.Driver))
	}
	for _, name := range slices.Sorted(maps.Keys(n.DriverOpts)) {
		mtu, err := strconv.ParseInt(n.DriverOpts[name], 10, 32)
		if name != "com.docker.network.driver.mtu" || err != nil {
			t.refuse(at("driver_opts", name), "only com.docker.network.driver.mtu, with a number, is supported")
		}
		out.Request.Mtu = int32(mtu)
	}
	if n.Ipam.Driver != "" && n.Ipam.Driver != "default" {
		t.refuse(at("ipam", "driver"), "only default is supported")
	}
	for i, pool := range n.Ipam.Config {
		if pool.Subnet == "" {
			t.refuse(at("ipam", "config", strconv.Itoa(i)), "the other addresses need a subnet")
			continue
		}
		out.Request.Subnets = append(out.Request.Subnets, &longshorev1.Subnet{
			Range: pool.Subnet, Gateway: pool.Gateway, Pool: pool.IPRange, Reserved: pool.AuxiliaryAddresses,
		})
	}
	if n.EnableIPv4 != nil && !*n.EnableIPv4 {
		t.refuse(at("enable_ipv4"), "each network has IPv4 addresses")
	}
	out.Request.Ipv6 = n.EnableIPv6 != nil && *n.EnableIPv6
	out.Request.Labels[composefile.LabelHash] = digest(out.Request.GetSubnets(), out.Request.GetInternal(), out.Request.GetMtu(), out.Request.GetIpv6())
	return out
}

func (t *translator) volume(key string, v types.VolumeConfig) composefile.Volume {
	out := composefile.Volume{
		Key: key, External: bool(v.External), At: t.where.at("volumes", key),
		Request: &longshorev1.CreateVolumeRequest{Name: v.Name, Labels: t.labels(v.Labels, composefile.LabelVolume, key), Options: v.DriverOpts},
	}
	if v.Driver != "" && v.Driver != "local" && !v.External {
		t.refuse([]string{"volumes", key, "driver"}, fmt.Sprintf("the driver is local, not %q", v.Driver))
	}
	out.Request.Labels[composefile.LabelHash] = digest(out.Request.GetOptions())
	return out
}

// digest returns the hash of values.
func digest(values ...any) string {
	data, err := json.Marshal(values)
	if err != nil {
		data = fmt.Append(nil, values...)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// serviceTranslator translates one service.
type serviceTranslator struct {
	*translator
	s   types.ServiceConfig
	r   *longshorev1.CreateRequest
	out composefile.Service
}

// refuse refuses a key of the service.
func (t *serviceTranslator) refuse(why string, path ...string) {
	t.translator.refuse(append([]string{"services", t.s.Name}, path...), why)
}

// disk reads the disk limit.
func (t *serviceTranslator) disk() {
	for key, value := range t.s.StorageOpt {
		if key != "size" {
			t.refuse("size is the only option", "storage_opt", key)
			continue
		}
		n, err := core.DiskLimit(value)
		if err != nil {
			t.refuse(err.Error(), "storage_opt", key)
		}
		t.r.DiskBytes = uint64(n)
	}
}

func (t *translator) service(s types.ServiceConfig) (composefile.Service, error) {
	x := &serviceTranslator{translator: t, s: s, r: &longshorev1.CreateRequest{
		Image: s.Image, Workdir: s.WorkingDir, User: s.User, Tty: s.Tty, Stdin: s.StdinOpen, Hostname: s.Hostname, Privileged: s.Privileged, CapAdd: s.CapAdd, CapDrop: s.CapDrop,
		ReadOnly: s.ReadOnly, StopSignal: s.StopSignal, Sysctls: s.Sysctls, Annotations: s.Annotations, Groups: s.GroupAdd, Domainname: s.DomainName, Platform: s.Platform, Runtime: s.Runtime, Mac: s.MacAddress,
		ShmBytes: uint64(max(s.ShmSize, 0)), CpuShares: uint64(max(s.CPUShares, 0)), CpusetCpus: s.CPUSet, OomScoreAdj: int32(s.OomScoreAdj), Expose: s.Expose,
	}}
	x.disk()
	x.out = composefile.Service{
		Name: s.Name, Request: x.r, ContainerName: s.ContainerName, Scale: s.GetScale(), Quiet: s.Attach != nil && !*s.Attach, At: t.where.at("services", s.Name),
	}
	if s.Image == "" && s.Build == nil {
		x.refuse("image is missing")
	}
	if x.out.Scale < 0 || x.out.Scale > maxScale {
		x.refuse(fmt.Sprintf("a service has from 0 to %d containers", maxScale), "scale")
	}
	if x.out.Scale > 1 && s.ContainerName != "" {
		x.refuse("several containers cannot have one name", "container_name")
	}
	x.command()
	x.dependencies()
	x.limits()
	x.devices()
	x.namespaces()
	x.networks()
	x.ports()
	x.mounts()
	x.files()
	x.health()
	x.log()
	x.pull()
	x.restart()
	x.verify()
	return x.out, x.identify()
}

// maxScale bounds the containers of one service.
const maxScale = 1000

// identify sets the labels and the hash.
func (t *serviceTranslator) identify() error {
	s := t.s
	s.Build, s.PullPolicy, s.Scale, s.DependsOn, s.Profiles, s.Attach, s.Develop, s.Extends = nil, "", nil, nil, nil, nil, nil, nil
	if s.Deploy != nil {
		d := *s.Deploy
		d.Replicas = nil
		s.Deploy = &d
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("service %s: %w", t.s.Name, err)
	}
	var names []string // the objects that the keys of the service mean
	for _, n := range append(t.r.GetFurtherNetworks(), &longshorev1.NetworkAttachment{Network: t.r.GetNetwork()}) {
		names = append(names, n.GetNetwork())
	}
	for _, m := range t.r.GetMounts() {
		names = append(names, m.GetSource())
	}
	t.out.Hash = digest(string(data), names, t.out.Files)
	var needs []string
	for _, d := range t.out.DependsOn {
		needs = append(needs, fmt.Sprintf("%s:%s:%t", d.Service, d.Condition, d.Restart))
	}
	t.r.Labels = t.labels(t.s.Labels, composefile.LabelService, t.s.Name, composefile.LabelOneOff, "False", composefile.LabelHash, t.out.Hash, composefile.LabelDependsOn, strings.Join(needs, ","),
		composefile.LabelDir, t.p.WorkingDir, composefile.LabelFiles, strings.Join(t.p.ComposeFiles, ","))
	return nil
}

// command sets the program and its environment.
func (t *serviceTranslator) command() {
	t.r.Command = t.s.Command
	switch {
	case len(t.s.Entrypoint) > 0:
		t.r.Entrypoint, t.r.Command = t.s.Entrypoint[0], append(slices.Clone(t.s.Entrypoint[1:]), t.s.Command...)
	case t.s.Entrypoint != nil:
		t.r.ClearEntrypoint = true
	}
	for _, name := range slices.Sorted(maps.Keys(t.s.Environment)) {
		if v := t.s.Environment[name]; v != nil {
			t.r.Env = append(t.r.Env, name+"="+*v)
		}
	}
	if t.s.Init != nil {
		t.r.Init = *t.s.Init
	}
	if t.s.StopGracePeriod != nil {
		t.r.StopGrace = durationpb.New(time.Duration(*t.s.StopGracePeriod))
	}
	for i, o := range t.s.SecurityOpt {
		if err := runflags.AddSecurity(t.r, t.profile(o)); err != nil {
			t.refuse(err.Error(), "security_opt", strconv.Itoa(i))
		}
	}
}

// profile makes the file of a seccomp profile relative to the project.
func (t *serviceTranslator) profile(option string) string {
	for _, prefix := range []string{"seccomp=", "seccomp:"} {
		if file, ok := strings.CutPrefix(option, prefix); ok && file != "unconfined" && !strings.HasPrefix(file, "/") {
			return prefix + t.p.WorkingDir + "/" + file
		}
	}
	return option
}

func (t *serviceTranslator) dependencies() {
	for _, name := range slices.Sorted(maps.Keys(t.s.DependsOn)) {
		d := t.s.DependsOn[name]
		if _, ok := t.p.Services[name]; !ok {
			t.refuse("the service is in a profile that is not enabled, or left out", "depends_on", name)
		}
		t.out.DependsOn = append(t.out.DependsOn, composefile.Dependency{Service: name, Condition: d.Condition, Required: d.Required, Restart: d.Restart})
	}
	for i, l := range t.s.Links {
		if name, alias, ok := strings.Cut(l, ":"); ok && alias != name {
			t.refuse(fmt.Sprintf("write the alias %s below networks of the service %s", alias, name), "links", strconv.Itoa(i))
		}
	}
}

// limits sets the resources. Those below deploy win.
func (t *serviceTranslator) limits() {
	s := t.s
	memory, reserved, cpus, pids := s.MemLimit, s.MemReservation, float64(s.CPUS), s.PidsLimit
	t.r.CpuQuota, t.r.CpuPeriod, t.r.OomKillDisable = s.CPUQuota, uint64(max(s.CPUPeriod, 0)), s.OomKillDisable
	if s.MemSwappiness > 0 {
		t.r.MemorySwappiness = proto.Uint64(uint64(s.MemSwappiness))
	}
	t.blockDevices(s.BlkioConfig)
	if d := s.Deploy; d != nil {
		if d.Mode != "" && d.Mode != "replicated" {
			t.refuse("only replicated is possible", "deploy", "mode")
		}
		if l := d.Resources.Limits; l != nil {
			if l.MemoryBytes > 0 {
				memory = l.MemoryBytes
			}
			if l.NanoCPUs > 0 {
				cpus = float64(l.NanoCPUs.Value())
			}
			if l.Pids > 0 {
				pids = l.Pids
			}
		}
		if l := d.Resources.Reservations; l != nil && l.MemoryBytes > 0 {
			reserved = l.MemoryBytes
		}
	}
	t.r.MemoryBytes, t.r.MemoryReservationBytes = uint64(max(memory, 0)), uint64(max(reserved, 0))
	t.r.Cpus = math.Round(cpus*1e4) / 1e4 // the files' numbers have a lower precision
	if t.r.MemorySwapBytes = int64(s.MemSwapLimit); s.MemSwapLimit < 0 {
		t.r.MemorySwapBytes = -1
	}
	if pids > 0 {
		t.r.Pids = pids
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		u := s.Ulimits[name]
		if u.Single != 0 {
			t.r.Ulimits = append(t.r.Ulimits, fmt.Sprintf("%s=%d", name, u.Single))
			continue
		}
		t.r.Ulimits = append(t.r.Ulimits, fmt.Sprintf("%s=%d:%d", name, u.Soft, u.Hard))
	}
}

// blockDevices sets the limits for block devices.
func (t *serviceTranslator) blockDevices(c *types.BlkioConfig) {
	if c == nil {
		return
	}
	t.r.BlkioWeight = uint32(c.Weight)
	for _, w := range c.WeightDevice {
		t.r.BlkioWeightDevices = append(t.r.BlkioWeightDevices, &longshorev1.DeviceLimit{Path: w.Path, Value: uint64(w.Weight)})
	}
	for _, l := range []struct {
		from []types.ThrottleDevice
		to   *[]*longshorev1.DeviceLimit
	}{{c.DeviceReadBps, &t.r.DeviceReadBps}, {c.DeviceWriteBps, &t.r.DeviceWriteBps}, {c.DeviceReadIOps, &t.r.DeviceReadIops}, {c.DeviceWriteIOps, &t.r.DeviceWriteIops}} {
		for _, d := range l.from {
			*l.to = append(*l.to, &longshorev1.DeviceLimit{Path: d.Path, Value: uint64(max(d.Rate, 0))})
		}
	}
}

func (t *serviceTranslator) devices() {
	t.r.DeviceCgroupRules = t.s.DeviceCgroupRules
	for _, d := range t.s.Devices {
		text := d.Source
		if strings.HasPrefix(text, "/") {
			if d.Target != "" {
				text += ":" + d.Target
			}
			if d.Permissions != "" {
				text += ":" + d.Permissions
			}
		}
		t.r.Devices = append(t.r.Devices, text)
	}
	t.gpus(t.s.Gpus, "gpus")
	if t.s.Deploy != nil && t.s.Deploy.Resources.Reservations != nil {
		t.gpus(t.s.Deploy.Resources.Reservations.Devices, "deploy", "resources", "reservations", "devices")
	}
}

// gpus adds requested devices by their names of the Container Device Interface.
func (t *serviceTranslator) gpus(list []types.DeviceRequest, path ...string) {
	for i, g := range list {
		at := append(slices.Clone(path), strconv.Itoa(i))
		switch {
		case g.Driver == "cdi":
			t.r.Devices = append(t.r.Devices, g.IDs...)
		case g.Driver != "" && g.Driver != "nvidia":
			t.refuse(fmt.Sprintf("the driver %q is neither nvidia nor cdi", g.Driver), at...)
		case len(g.IDs) > 0:
			for _, id := range g.IDs {
				t.r.Devices = append(t.r.Devices, "nvidia.com/gpu="+id)
			}
		case g.Count > 0:
			t.refuse("the Container Device Interface has no count of devices: write count: all, or device_ids", at...)
		default:
			t.r.Devices = append(t.r.Devices, "nvidia.com/gpu=all")
		}
	}
}

// namespaces sets the namespaces and the lines of files about names.
func (t *serviceTranslator) namespaces() {
	s := t.s
	for _, n := range []struct {
		key, value string
		to         *string
		allowed    []string
	}{
		{"pid", s.Pid, &t.r.Pid, []string{"host"}},
		{"ipc", s.Ipc, &t.r.Ipc, []string{"host", "private", "shareable"}},
		{"uts", s.Uts, &t.r.Uts, []string{"host"}},
		{"userns_mode", s.UserNSMode, &t.r.Userns, []string{"host", "private"}},
		{"cgroup", s.Cgroup, &t.r.Cgroupns, []string{"host", "private"}},
	} {
		if text := t.joined(n.value); text != "" && (n.key == "pid" || n.key == "ipc") {
			*n.to = text
			continue
		}
		if n.value != "" && !slices.Contains(n.allowed, n.value) {
			t.refuse(fmt.Sprintf("%q is not among %s: other namespaces cannot be joined", n.value, strings.Join(n.allowed, ", ")), n.key)
			continue
		}
		*n.to = n.value
	}
	t.r.Hosts = s.ExtraHosts.AsList(":")
	slices.Sort(t.r.Hosts)
	if len(s.DNS)+len(s.DNSSearch)+len(s.DNSOpts) > 0 {
		t.r.Dns = &longshorev1.Dns{Servers: s.DNS, Searches: s.DNSSearch, Options: s.DNSOpts}
	}
	for _, from := range s.VolumesFrom {
		text, container := strings.CutPrefix(from, types.ContainerPrefix)
		name, mode, _ := strings.Cut(text, ":")
		if _, ok := t.p.Services[name]; ok && !container {
			name = t.firstContainer(name)
		}
		if mode != "" {
			name += ":" + mode
		}
		t.r.VolumesFrom = append(t.r.VolumesFrom, name)
	}
}

func (t *serviceTranslator) health() {
	h := t.s.HealthCheck
	if h == nil {
		return
	}
	if h.Disable {
		t.r.Health = &longshorev1.HealthCheck{Test: []string{"NONE"}}
		return
	}
	c := &longshorev1.HealthCheck{Test: h.Test}
	for _, d := range []struct {
		from *types.Duration
		to   **durationpb.Duration
	}{{h.Interval, &c.Interval}, {h.Timeout, &c.Timeout}, {h.StartPeriod, &c.StartPeriod}, {h.StartInterval, &c.StartInterval}} {
		if d.from != nil && *d.from != 0 {
			*d.to = durationpb.New(time.Duration(*d.from))
		}
	}
	if h.Retries != nil {
		c.Retries = int32(min(*h.Retries, 1000))
	}
	t.r.Health = c
}

// log sets the log of the container.
func (t *serviceTranslator) log() {
	l := t.s.Logging
	if l == nil {
		return
	}
	switch l.Driver {
	case "", "json-file", "local":
		t.r.LogDriver = l.Driver
	case "none":
		t.r.NoLog = true
	default:
		t.service(l)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l.Options)) {
		var err error
		switch value := l.Options[name]; name {
		case "max-size":
			var n uint64
			n, err = typed.Bytes(value)
			t.r.LogBytes = int64(min(n, 1<<62))
		case "max-file":
			var n int64
			n, err = strconv.ParseInt(value, 10, 32)
			t.r.LogFiles = int32(n)
		default:
			t.refuse("only max-size and max-file are supported", "logging", "options", name)
		}
		if err != nil {
			t.refuse(err.Error(), "logging", "options", name)
		}
	}
}

// service sets the service that also gets the log's lines.
func (t *serviceTranslator) service(l *types.LoggingConfig) {
	if !driver.Known(l.Driver) {
		t.refuse(fmt.Sprintf("the driver %q is none of %s", l.Driver, driver.Supported), "logging", "driver")
		return
	}
	if _, err := driver.Parse(l.Driver, l.Options); err != nil {
		t.refuse(err.Error(), "logging", "options")
		return
	}
	t.r.LogDriver, t.r.LogOptions = l.Driver, l.Options
}

func (t *serviceTranslator) pull() {
	policy, after, err := t.s.GetPullPolicy()
	switch {
	case err != nil:
		t.refuse(err.Error(), "pull_policy")
	case policy == types.PullPolicyBuild:
		t.refuse("images are not built", "pull_policy")
	case policy == types.PullPolicyRefresh:
		policy, t.out.PullAfter = types.PullPolicyMissing, after
		if after == 0 {
			policy = types.PullPolicyAlways
		}
	}
	if t.r.Pull = policy; policy == types.PullPolicyIfNotPresent {
		t.r.Pull = types.PullPolicyMissing
	}
}

// restart sets the restart policy. That of deploy comes before that of the service itself, as in the Compose specification.
func (t *serviceTranslator) restart() {
	policy, at := t.s.Restart, []string{"restart"}
	if d := t.s.Deploy; d != nil && d.RestartPolicy != nil {
		at = []string{"deploy", "restart_policy", "condition"}
		switch c := d.RestartPolicy.Condition; c {
		case "", "any":
			policy = types.RestartPolicyAlways
		case "none":
			policy = types.RestartPolicyNo
		default:
			policy = c
		}
		if n := d.RestartPolicy.MaxAttempts; n != nil && policy == types.RestartPolicyOnFailure {
			policy += ":" + strconv.FormatUint(*n, 10)
		}
	}
	if _, err := restart.Parse(policy); err != nil {
		t.refuse(err.Error(), at...)
	}
	if policy != types.RestartPolicyNo {
		t.r.Restart = policy
	}
}
