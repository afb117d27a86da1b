package runflags

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// argList collects the arguments of run.
type argList []string

// text adds a flag unless its value is empty.
func (l *argList) text(flag, value string) {
	if value != "" {
		*l = append(*l, "--"+flag+"="+value)
	}
}

// each adds a flag for each value.
func (l *argList) each(flag string, values []string) {
	for _, v := range values {
		*l = append(*l, "--"+flag+"="+v)
	}
}

// on adds a flag without a value.
func (l *argList) on(flag string, is bool) {
	if is {
		*l = append(*l, "--"+flag)
	}
}

// number adds a flag unless its value is zero.
func (l *argList) number(flag string, n int64) {
	if n != 0 {
		l.text(flag, strconv.FormatInt(n, 10))
	}
}

// pairs adds a flag NAME=value for each element, in the order of the names.
func (l *argList) pairs(flag string, m map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		l.text(flag, name+"="+m[name])
	}
}

// time adds a flag with a duration.
func (l *argList) time(flag string, d *durationpb.Duration) {
	if d != nil {
		l.text(flag, d.AsDuration().String())
	}
}

// Args returns arguments of run (flags, image, command) for the same request without its name, removal, restart policy, attached
// streams and credentials. It refuses a request with a field that no flag can express.
func Args(r *longshorev1.CreateRequest) ([]string, error) {
	r = withDefaults(r)
	args := argsOf(r)
	f := New()
	fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.Define(fl)
	err := fl.Parse(args)
	if err == nil {
		err = f.Fill(fl, fl.Args(), func(string) string { return "" })
	}
	if err != nil {
		return nil, fmt.Errorf("the container's settings cannot be written as flags of run: %w", err)
	}
	if other := differences(r, f.Request); len(other) > 0 {
		return nil, fmt.Errorf("no flag of run can repeat these settings of the container: %s", strings.Join(other, ", "))
	}
	return args, nil
}

// withDefaults returns a copy of a request, of another client maybe, with the defaults in the form of this command line.
func withDefaults(r *longshorev1.CreateRequest) *longshorev1.CreateRequest {
	out, ok := proto.Clone(r).(*longshorev1.CreateRequest)
	if !ok {
		return r
	}
	out.Pull, out.Systemd = cmp.Or(out.GetPull(), "missing"), cmp.Or(out.GetSystemd(), systemdDefault)
	for _, m := range out.GetMounts() {
		m.ByMount = true // the flag that can say all of a mount
	}
	if out.GetOnUnhealthy() == "none" {
		out.OnUnhealthy = ""
	}
	return out
}

// ofOneCall are the fields that Args leaves out: they describe one container or one client.
var ofOneCall = []string{"name", "auto_remove", "restart", "start", "hold", "stdin_once", "size", "credentials"}

// differences returns the names of the fields that differ.
func differences(a, b *longshorev1.CreateRequest) (names []string) {
	fields := a.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if slices.Contains(ofOneCall, string(field.Name())) {
			continue
		}
		if !proto.Equal(only(a, field), only(b, field)) {
			names = append(names, string(field.Name()))
		}
	}
	return names
}

// only returns a request with one field of r.
func only(r *longshorev1.CreateRequest, field protoreflect.FieldDescriptor) *longshorev1.CreateRequest {
	out := &longshorev1.CreateRequest{}
	if r.ProtoReflect().Has(field) {
		out.ProtoReflect().Set(field, r.ProtoReflect().Get(field))
	}
	return out
}

func argsOf(r *longshorev1.CreateRequest) []string {
	var l argList
	if r.GetPull() != "missing" {
		l.text("pull", r.GetPull())
	}
	program(&l, r)
	resources(&l, r)
	security(&l, r)
	networkArgs(&l, r)
	storage(&l, r)
	healthArgs(&l, r)
	l = append(l, r.GetImage())
	if c := r.GetCommand(); len(c) > 0 {
		if c[0] == "--" {
			l = append(l, "--")
		}
		l = append(l, c...)
	}
	return l
}

// program adds the flags of the process.
func program(l *argList, r *longshorev1.CreateRequest) {
	l.text("entrypoint", r.GetEntrypoint())
	if r.GetClearEntrypoint() {
		*l = append(*l, "--entrypoint=")
	}
	l.each("env", r.GetEnv())
	l.text("workdir", r.GetWorkdir())
	l.text("user", r.GetUser())
	l.each("group-add", r.GetGroups())
	l.on("tty", r.GetTty())
	l.on("interactive", r.GetStdin())
	l.on("init", r.GetInit())
	l.text("stop-signal", r.GetStopSignal())
	l.time("stop-timeout", r.GetStopGrace())
	l.pairs("label", r.GetLabels())
	l.pairs("annotation", r.GetAnnotations())
	l.text("runtime", r.GetRuntime())
	l.text("platform", r.GetPlatform())
	l.number("oom-score-adj", int64(r.GetOomScoreAdj()))
	if r.GetLogBytes() > 0 {
		l.text("log-opt", "max-size="+strconv.FormatInt(r.GetLogBytes(), 10))
	}
	if r.GetLogFiles() > 0 {
		l.text("log-opt", "max-file="+strconv.Itoa(int(r.GetLogFiles())))
	}
	if r.GetNoLog() {
		l.text("log-driver", "none")
	}
	l.text("log-driver", r.GetLogDriver())
	l.pairs("log-opt", r.GetLogOptions())
}

// resources adds the flags of limits.
func resources(l *argList, r *longshorev1.CreateRequest) {
	l.number("memory", int64(r.GetMemoryBytes()))
	l.number("memory-swap", r.GetMemorySwapBytes())
	l.number("memory-reservation", int64(r.GetMemoryReservationBytes()))
	if r.GetCpus() != 0 {
		l.text("cpus", strconv.FormatFloat(r.GetCpus(), 'g', -1, 64))
	}
	l.number("pids", r.GetPids())
	l.number("cpu-quota", r.GetCpuQuota())
	l.number("cpu-period", int64(r.GetCpuPeriod()))
	if r.MemorySwappiness != nil {
		l.text("memory-swappiness", strconv.FormatUint(r.GetMemorySwappiness(), 10))
	}
	l.on("oom-kill-disable", r.GetOomKillDisable())
	l.number("blkio-weight", int64(r.GetBlkioWeight()))
	for _, d := range []struct {
		flag   string
		limits []*longshorev1.DeviceLimit
	}{
		{"blkio-weight-device", r.GetBlkioWeightDevices()},
		{"device-read-bps", r.GetDeviceReadBps()},
		{"device-write-bps", r.GetDeviceWriteBps()},
		{"device-read-iops", r.GetDeviceReadIops()},
		{"device-write-iops", r.GetDeviceWriteIops()},
	} {
		for _, limit := range d.limits {
			l.text(d.flag, limit.GetPath()+":"+strconv.FormatUint(limit.GetValue(), 10))
		}
	}
	l.text("cpuset-cpus", r.GetCpusetCpus())
	l.text("cpuset-mems", r.GetCpusetMems())
	l.number("cpu-shares", int64(r.GetCpuShares()))
	l.each("ulimit", r.GetUlimits())
	l.number("shm-size", int64(r.GetShmBytes()))
	l.pairs("sysctl", r.GetSysctls())
}

// security adds the flags of rights.
func security(l *argList, r *longshorev1.CreateRequest) {
	l.on("privileged", r.GetPrivileged())
	l.each("cap-add", r.GetCapAdd())
	l.each("cap-drop", r.GetCapDrop())
	l.on("new-privileges", r.GetNewPrivileges())
	l.on("read-only", r.GetReadOnly())
	if r.GetSeccompUnconfined() {
		l.text("security-opt", "seccomp=unconfined")
	}
	if r.GetApparmor() != "" {
		l.text("security-opt", "apparmor="+r.GetApparmor())
	}
	for _, part := range r.GetSelinux() {
		l.text("security-opt", "label="+part)
	}
	if r.GetUnmasked() {
		l.text("security-opt", "systempaths=unconfined")
	}
	l.each("device-cgroup-rule", r.GetDeviceCgroupRules())
	l.text("cgroupns", r.GetCgroupns())
	if r.GetSystemd() != systemdDefault {
		l.text("systemd", r.GetSystemd())
	}
	l.text("pid", r.GetPid())
	l.text("ipc", r.GetIpc())
	l.text("uts", r.GetUts())
	l.text("userns", r.GetUserns())
	l.each("device", r.GetDevices())
}

// networkArgs adds the flags of networks and ports.
func networkArgs(l *argList, r *longshorev1.CreateRequest) {
	l.text("network", r.GetNetwork())
	l.text("ip", r.GetIp())
	l.text("ip6", r.GetIp6())
	l.text("mac-address", r.GetMac())
	l.each("network-alias", r.GetNetworkAliases())
	for _, n := range r.GetFurtherNetworks() {
		parts := []string{"name=" + n.GetNetwork()}
		for _, a := range n.GetAliases() {
			parts = append(parts, "alias="+a)
		}
		for _, a := range n.GetAddresses() {
			parts = append(parts, "ip="+a)
		}
		if n.GetMac() != "" {
			parts = append(parts, "mac-address="+n.GetMac())
		}
		if n.GetInterface() != "" {
			parts = append(parts, "interface="+n.GetInterface())
		}
		l.text("network", strings.Join(parts, ","))
	}
	for _, p := range r.GetPorts() {
		host := ""
		if p.GetHost() != 0 {
			host = strconv.Itoa(int(p.GetHost()))
		}
		if p.GetHostLast() > p.GetHost() {
			host += "-" + strconv.Itoa(int(p.GetHostLast()))
		}
		if p.GetHostIp() != "" {
			host = net.JoinHostPort(p.GetHostIp(), host)
		}
		if host != "" {
			host += ":"
		}
		l.text("publish", host+strconv.Itoa(int(p.GetContainer()))+"/"+p.GetProtocol())
	}
	l.on("publish-all", r.GetPublishAll())
	l.each("expose", r.GetExpose())
	l.text("hostname", r.GetHostname())
	l.text("domainname", r.GetDomainname())
	l.each("add-host", r.GetHosts())
	l.each("link", r.GetLinks())
	l.each("dns", r.GetDns().GetServers())
	l.each("dns-search", r.GetDns().GetSearches())
	l.each("dns-option", r.GetDns().GetOptions())
}

// storage adds the flags of mounts.
func storage(l *argList, r *longshorev1.CreateRequest) {
	for _, m := range r.GetMounts() {
		fields := []string{"type=volume"}
		if strings.HasPrefix(m.GetSource(), "/") {
			fields[0] = "type=bind"
		}
		for _, f := range []struct{ name, value string }{
			{"source", m.GetSource()}, {"target", m.GetTarget()}, {"bind-propagation", m.GetPropagation()}, {"volume-subpath", m.GetSubPath()},
		} {
			if f.value != "" {
				fields = append(fields, f.name+"="+f.value)
			}
		}
		if m.GetReadOnly() {
			fields = append(fields, "readonly")
		}
		if m.GetNoCopy() {
			fields = append(fields, "volume-nocopy")
		}
		l.text("mount", mountText(fields))
	}
	for _, m := range r.GetImages() {
		l.text("mount", mountText(imageMountFields(m)))
	}
	for _, t := range r.GetTmpfs() {
		value := t.GetTarget()
		if len(t.GetOptions()) > 0 {
			value += ":" + strings.Join(t.GetOptions(), ",")
		}
		l.text("tmpfs", value)
	}
	l.each("volumes-from", r.GetVolumesFrom())
}

// healthArgs adds the flags of the health check.
func healthArgs(l *argList, r *longshorev1.CreateRequest) {
	l.text("health-on-failure", r.GetOnUnhealthy())
	h := r.GetHealth()
	switch test := h.GetTest(); {
	case len(test) == 1 && test[0] == "NONE":
		*l = append(*l, "--no-healthcheck")
		return
	case len(test) > 0:
		text, _ := json.Marshal(test) // strings can always be written
		l.text("health-cmd", string(text))
	}
	l.time("health-interval", h.GetInterval())
	l.time("health-timeout", h.GetTimeout())
	l.time("health-start-period", h.GetStartPeriod())
	l.time("health-start-interval", h.GetStartInterval())
	l.number("health-retries", int64(h.GetRetries()))
}
