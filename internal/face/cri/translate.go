package cri

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/sysctl"
)

// maxHostname is the kernel's __NEW_UTS_LEN.
const maxHostname = 64

// sandboxConfig is the sandbox that a request asks for.
func sandboxConfig(face Config, req *v1.RunPodSandboxRequest) (core.SandboxConfig, error) {
	cfg := req.GetConfig()
	var sb core.SandboxConfig
	if cfg.GetMetadata().GetName() == "" {
		return sb, invalid.Errorf("sandbox config without metadata and a name")
	}
	if cfg.GetWindows() != nil && cfg.GetLinux() == nil {
		return sb, invalid.Errorf("sandbox %s is for Windows", cfg.GetMetadata().GetName())
	}
	sb.Key = convert.SandboxKey(cfg.GetMetadata())
	sb.Labels = maps.Clone(cfg.GetLabels())
	sb.Runtime = face.runtimeOf(req.GetRuntimeHandler())
	if err := convert.CheckKey(sb.Key); err != nil {
		return sb, err
	}
	if err := convert.SandboxProfiles(cfg.GetLinux().GetSecurityContext()); err != nil {
		return sb, err
	}
	if err := sandboxNamespaces(cfg, &sb); err != nil {
		return sb, err
	}
	if err := sandboxHostname(cfg, &sb); err != nil {
		return sb, err
	}
	if err := sandboxNetwork(cfg, &sb); err != nil {
		return sb, err
	}
	if err := sandboxSysctls(cfg, &sb); err != nil {
		return sb, err
	}
	if d := cfg.GetLogDirectory(); d != "" && (!path.IsAbs(d) || strings.Contains(d, "\x00")) {
		return sb, invalid.Errorf("log directory %q is not an absolute path", d)
	}
	var err error
	if sb.Cgroup, err = cgroupOf(face, cfg.GetLinux().GetCgroupParent()); err != nil {
		return sb, err
	}
	rec, err := newPodRecord(req)
	if err != nil {
		return sb, invalid.Errorf("sandbox config: %v", err)
	}
	sb.Data, err = rec.encode()
	return sb, err
}

// sandboxNamespaces: a sandbox's network is the pod's or the node's, its IPC
// also each container's own, its PID namespace all of these.
func sandboxNamespaces(cfg *v1.PodSandboxConfig, sb *core.SandboxConfig) error {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	ns := &sb.Namespaces
	for _, n := range []struct {
		name string
		mode v1.NamespaceMode
		to   *core.Namespace
		own  bool // CONTAINER is allowed
	}{
		{"network", o.GetNetwork(), &ns.Net, false},
		{"ipc", o.GetIpc(), &ns.IPC, true},
		{"pid", o.GetPid(), &ns.PID, true},
	} {
		switch {
		case n.mode == v1.NamespaceMode_POD:
			n.to.Mode = core.Shared
		case n.mode == v1.NamespaceMode_NODE:
			n.to.Mode = core.Host
		case n.mode == v1.NamespaceMode_CONTAINER && n.own:
			n.to.Mode = core.PerContainer
		default:
			return invalid.Errorf("sandbox: %s namespace mode %s", n.name, n.mode)
		}
	}
	// The host name belongs to the network identity.
	ns.UTS.Mode = ns.Net.Mode
	if err := usersWish(cfg, sb); err != nil {
		return err
	}
	if list, ok := cfg.GetAnnotations()[EgressAnnotation]; ok {
		if sb.Network.Egress = strings.Fields(list); len(sb.Network.Egress) == 0 {
			return invalid.Errorf("annotation %s: the list is empty; none permits nothing", EgressAnnotation)
		}
	}
	if wish, ok := cfg.GetAnnotations()[SleepAnnotation]; ok {
		var err error
		if sb.SleepAfter, err = core.SleepAfter(wish); err != nil {
			return invalid.Errorf("annotation %s: %v", SleepAnnotation, err)
		}
	}
	if wish, ok := cfg.GetAnnotations()[DiskAnnotation]; ok {
		if _, err := core.DiskLimit(wish); err != nil {
			return invalid.Errorf("annotation %s: %v", DiskAnnotation, err)
		}
	}
	return sandboxUsers(o.GetUsernsOptions(), sb)
}

// DiskAnnotation is the annotation of a pod with the disk limit of each of its containers: "10g".
const DiskAnnotation = "longshore.io/disk"

// SleepAnnotation is the annotation of a pod with containers that sleep when they have been idle for so long: "10m".
const SleepAnnotation = "longshore.io/sleep-after"

// EgressAnnotation is the annotation of a pod with an egress list. Spaces separate its entries.
const EgressAnnotation = "longshore.io/egress"

// UsersAnnotation is the annotation of a pod that needs the node's user ids although engine.userns is auto: "host". A kubelet's
// request does not tell a pod with hostUsers: true from one that says nothing.
const UsersAnnotation = "longshore.io/userns"

// usersWish says why the pod needs the node's user ids.
func usersWish(cfg *v1.PodSandboxConfig, sb *core.SandboxConfig) error {
	switch wish, ok := cfg.GetAnnotations()[UsersAnnotation]; {
	case ok && wish != "host":
		return invalid.Errorf("annotation %s: %q is not host", UsersAnnotation, wish)
	case ok:
		sb.Users.Host = "its annotation " + UsersAnnotation + " asks for the node's ids"
	case cfg.GetLinux().GetSecurityContext().GetPrivileged():
		sb.Users.Host = "it may be privileged"
	}
	return nil
}

// sandboxUsers takes at most one mapping of users and one of groups, as kubelet
// sends them, and root must be in it.
func sandboxUsers(u *v1.UserNamespace, sb *core.SandboxConfig) error {
	if u == nil {
		return nil
	}
	switch u.GetMode() {
	case v1.NamespaceMode_NODE:
		if len(u.GetUids())+len(u.GetGids()) > 0 {
			return invalid.Errorf("sandbox: mappings with the node's user namespace")
		}
		return nil
	case v1.NamespaceMode_POD:
	default:
		return invalid.Errorf("sandbox: user namespace mode %s", u.GetMode())
	}
	for _, m := range []struct {
		name string
		from []*v1.IDMapping
		to   *[]specs.LinuxIDMapping
	}{{"uid", u.GetUids(), &sb.UIDs}, {"gid", u.GetGids(), &sb.GIDs}} {
		if len(m.from) != 1 {
			return invalid.Errorf("sandbox: %d %s mappings, exactly one is possible", len(m.from), m.name)
		}
		if m.from[0].GetContainerId() != 0 || m.from[0].GetLength() == 0 {
			return invalid.Errorf("sandbox: %s mapping without container id 0", m.name)
		}
		*m.to = idMappings(m.from)
		if end := uint64(m.from[0].GetHostId()) + uint64(m.from[0].GetLength()); end > math.MaxUint32 {
			return invalid.Errorf("sandbox: %s mapping ends at %d", m.name, end)
		}
	}
	sb.Namespaces.User.Mode = core.Shared
	return nil
}

func idMappings(in []*v1.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}

func sandboxHostname(cfg *v1.PodSandboxConfig, sb *core.SandboxConfig) error {
	h := cfg.GetHostname()
	if len(h) > maxHostname {
		return invalid.Errorf("sandbox: host name of %d bytes, at most %d", len(h), maxHostname)
	}
	if strings.ContainsFunc(h, func(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return invalid.Errorf("sandbox: host name %q", h)
	}
	if h != "" && sb.Namespaces.UTS.Mode == core.Host { // refused by containerd too, and kubelet sends none
		return invalid.Errorf("sandbox: host name %q cannot be set with the host's network", h)
	}
	sb.Hostname = h
	return nil
}

func sandboxNetwork(cfg *v1.PodSandboxConfig, sb *core.SandboxConfig) error {
	n, m := &sb.Network, cfg.GetMetadata()
	if d := cfg.GetDnsConfig(); d != nil {
		n.DNS = core.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
		for _, list := range [][]string{d.GetServers(), d.GetSearches(), d.GetOptions()} {
			for _, s := range list {
				if strings.ContainsAny(s, "\x00\n\r") {
					return invalid.Errorf("sandbox: dns config %q", s)
				}
			}
		}
	}
	if sb.Namespaces.Net.Mode == core.Host {
		return nil
	}
	// The names of pods for CNI plugins.
	n.Args = map[string]string{
		"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": m.GetNamespace(), "K8S_POD_NAME": m.GetName(), "K8S_POD_UID": m.GetUid(),
	}
	var err error
	if n.IngressRate, err = convert.Bandwidth(cfg.GetAnnotations(), "kubernetes.io/ingress-bandwidth"); err != nil {
		return err
	}
	if n.EgressRate, err = convert.Bandwidth(cfg.GetAnnotations(), "kubernetes.io/egress-bandwidth"); err != nil {
		return err
	}
	n.Ports, err = ports(cfg.GetPortMappings())
	return err
}

// ports are those mappings that ask for a host port; kubelet sends the others
// too, they need nothing.
func ports(mappings []*v1.PortMapping) ([]core.Port, error) {
	var out []core.Port
	seen := map[core.Port]bool{}
	for _, m := range mappings {
		if m.GetHostPort() == 0 {
			continue
		}
		if m.GetHostPort() < 0 || m.GetHostPort() > math.MaxUint16 || m.GetContainerPort() < 1 || m.GetContainerPort() > math.MaxUint16 {
			return nil, invalid.Errorf("sandbox: port mapping %d to %d", m.GetHostPort(), m.GetContainerPort())
		}
		p := core.Port{Host: uint16(m.GetHostPort()), Container: uint16(m.GetContainerPort())}
		switch m.GetProtocol() {
		case v1.Protocol_TCP:
			p.Proto = "tcp"
		case v1.Protocol_UDP:
			p.Proto = "udp"
		case v1.Protocol_SCTP:
			p.Proto = "sctp"
		default:
			return nil, invalid.Errorf("sandbox: port %d: protocol %d", p.Host, m.GetProtocol())
		}
		if s := m.GetHostIp(); s != "" {
			a, err := netip.ParseAddr(s)
			if err != nil || a.Zone() != "" {
				return nil, invalid.Errorf("sandbox: port %d: host ip %q", p.Host, s)
			}
			if p.HostIP = a.Unmap(); a.IsUnspecified() {
				p.HostIP = netip.Addr{}
			}
		}
		at := core.Port{Proto: p.Proto, HostIP: p.HostIP, Host: p.Host}
		if seen[at] {
			return nil, invalid.Errorf("sandbox: host port %s/%d is asked for twice", p.Proto, p.Host)
		}
		seen[at] = true
		out = append(out, p)
	}
	return out, nil
}

// sandboxSysctls refuses sysctls that would affect the node itself.
func sandboxSysctls(cfg *v1.PodSandboxConfig, sb *core.SandboxConfig) error {
	in := cfg.GetLinux().GetSysctls()
	if len(in) == 0 {
		return nil
	}
	settings, err := sysctl.ParseAll(in)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	sb.Sysctls = make(map[string]string, len(in))
	for _, s := range settings {
		switch {
		case nul(s.Value):
			return invalid.Errorf("sandbox: value of sysctl %s", s.Name)
		case s.Kind == specs.NetworkNamespace && sb.Namespaces.Net.Mode == core.Host:
			return invalid.Errorf("sandbox: sysctl %s with the node's network", s.Name)
		case s.Kind == specs.IPCNamespace && sb.Namespaces.IPC.Mode == core.Host:
			return invalid.Errorf("sandbox: sysctl %s with the node's ipc namespace", s.Name)
		}
		sb.Sysctls[s.Dotted()] = s.Value
	}
	return nil
}

// cgroupOf takes both forms of a parent: a cgroupfs path, or the last part of a systemd slice.
func cgroupOf(face Config, parent string) (core.Cgroup, error) {
	if parent == "" {
		parent = face.SandboxCgroup
	}
	if strings.Contains(parent, "\x00") || strings.Contains("/"+parent+"/", "/../") {
		return core.Cgroup{}, invalid.Errorf("sandbox: cgroup parent %q", parent)
	}
	if face.CgroupDriver == "systemd" && parent != "" {
		slice := path.Base(parent)
		if !strings.HasSuffix(slice, ".slice") {
			return core.Cgroup{}, invalid.Errorf("sandbox: cgroup parent %q is no slice, but the cgroup driver is systemd", parent)
		}
		return core.Cgroup{Parent: slice}, nil
	}
	return core.Cgroup{Parent: parent}, nil
}

// logPath is where a container's log goes; "" when it is not kept.
func logPath(dir, file string) (string, error) {
	if dir == "" || file == "" {
		return "", nil
	}
	if !path.IsAbs(dir) || strings.Contains(dir, "\x00") {
		return "", invalid.Errorf("container: log directory %q is not an absolute path", dir)
	}
	if !filepath.IsLocal(file) || strings.Contains(file, "\x00") || path.Clean(file) == "." {
		return "", invalid.Errorf("container: log path %q does not stay below the log directory", file)
	}
	return path.Join(dir, file), nil
}

// containerIO is a container's standard streams. Below the pod's log directory no link is followed,
// because a pod may have a mount of that directory.
func containerIO(face Config, cfg *v1.ContainerConfig, dir, log string) core.IO {
	io := core.IO{TTY: cfg.GetTty()}
	switch {
	case cfg.GetStdin() && cfg.GetStdinOnce():
		io.Stdin = core.StdinOnce
	case cfg.GetStdin():
		io.Stdin = core.StdinOpen
	}
	if log != "" {
		io.Sinks = []core.Sink{{
			Format: core.FormatCRI, Stdout: true, Stderr: !cfg.GetTty(), Path: log, Below: path.Clean(dir),
			MaxBytes: face.LogMaxBytes, MaxFiles: face.LogMaxFiles,
		}}
		if face.LogMaxBytes == 0 {
			io.Sinks[0].MaxFiles = 0
		}
	}
	return io
}

// checkContainer refuses a request that cannot become a container.
func checkContainer(req *v1.CreateContainerRequest) error {
	cfg := req.GetConfig()
	switch {
	case req.GetPodSandboxId() == "":
		return invalid.Errorf("container without a sandbox id")
	case cfg.GetMetadata().GetName() == "":
		return invalid.Errorf("container config without metadata and a name")
	case cfg.GetImage().GetImage() == "":
		return invalid.Errorf("container %s: no image", cfg.GetMetadata().GetName())
	case cfg.GetWindows() != nil && cfg.GetLinux() == nil:
		return invalid.Errorf("container %s is for Windows", cfg.GetMetadata().GetName())
	}
	if err := convert.ContainerProfiles(cfg.GetLinux().GetSecurityContext()); err != nil {
		return err
	}
	if err := checkCgroups(cfg); err != nil {
		return err
	}
	return checkContainerNamespaces(cfg)
}

func checkContainerNamespaces(cfg *v1.ContainerConfig) error {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetNetwork() == v1.NamespaceMode_TARGET || o.GetIpc() == v1.NamespaceMode_TARGET {
		return invalid.Errorf("container %s: only the pid namespace can be another container's", cfg.GetMetadata().GetName())
	}
	if o.GetPid() == v1.NamespaceMode_TARGET && o.GetTargetId() == "" {
		return invalid.Errorf("container %s: pid namespace TARGET without a target id", cfg.GetMetadata().GetName())
	}
	return nil
}

// fitNamespaces refuses a container that asks for other namespaces than its sandbox has: the
// sandbox decides, and silently giving less privacy, or the node's namespaces, would be wrong. POD
// is also the value of clients that set nothing.
func fitNamespaces(cfg *v1.ContainerConfig, sb *core.Sandbox) error {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	have := sb.Config.Namespaces
	for _, n := range []struct {
		name string
		want v1.NamespaceMode
		have core.NamespaceMode
	}{{"network", o.GetNetwork(), have.Net.Mode}, {"ipc", o.GetIpc(), have.IPC.Mode}, {"pid", o.GetPid(), have.PID.Mode}} {
		bad := n.want == v1.NamespaceMode_NODE && n.have != core.Host ||
			n.want == v1.NamespaceMode_CONTAINER && n.have != core.PerContainer
		if bad {
			return invalid.Errorf("container %s: %s namespace %s, but its sandbox has another", cfg.GetMetadata().GetName(), n.name, n.want)
		}
	}
	return nil
}

// grace is a stop's timeout in seconds; 0 and less is at once.
func grace(seconds int64) time.Duration {
	return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
}
