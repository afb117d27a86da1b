package translate

import (
	"errors"
	"os"
	"path"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/sysctl"
)

// ValidName reports whether s can be a name of ours, which is also a file name and a host name.
func ValidName(s string) bool {
	for i := range len(s) {
		letter := 'a' <= s[i] && s[i] <= 'z' || 'A' <= s[i] && s[i] <= 'Z' || '0' <= s[i] && s[i] <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(s[i]))) {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// Check refuses requests to create a container that contradict themselves or name impossible values.
func Check(req *longshorev1.CreateRequest) error {
	if req.GetName() != "" && !ValidName(req.GetName()) {
		return invalid.Errorf("name %q: letters, digits, _ . - only, a letter or digit first, at most 128", req.GetName())
	}
	switch req.GetPull() {
	case "", "missing", "always", "never":
	default:
		return invalid.Errorf("pull %q is none of missing, always, never", req.GetPull())
	}
	if req.GetImage() == "" {
		return invalid.Errorf("an image is needed")
	}
	if req.GetCpus() < 0 || req.GetCpus() > 1e4 {
		return invalid.Errorf("cpus %v is out of range", req.GetCpus())
	}
	for _, e := range req.GetEnv() {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return invalid.Errorf("environment variable %q is not NAME=value", name)
		}
	}
	if req.GetStopSignal() != "" {
		if _, err := ocispec.Signal(req.GetStopSignal()); err != nil {
			return err
		}
	}
	if _, err := Grace(req.GetStopGrace()); err != nil {
		return err
	}
	if err := checkSystemd(req); err != nil {
		return err
	}
	switch policy, err := restart.Parse(req.GetRestart()); {
	case err != nil:
		return err
	case policy.Name != core.RestartNever && (req.GetAutoRemove() || req.GetHold()):
		return invalid.Errorf("restart policy %s cannot be combined with the removal of the container after its end", restart.Format(policy))
	}
	if req.GetWorkdir() != "" && !path.IsAbs(req.GetWorkdir()) {
		return invalid.Errorf("workdir %q is not an absolute path", req.GetWorkdir())
	}
	if req.GetPublishAll() && !ownNetwork(req) {
		return invalid.Errorf("ports cannot be published with network %s", req.GetNetwork())
	}
	if err := checkLinks(req); err != nil {
		return err
	}
	if req.GetLogBytes() < 0 || req.GetLogFiles() < 0 || req.GetLogFiles() > MaxLogFiles {
		return invalid.Errorf("a log has at most %d files, and no negative size", MaxLogFiles)
	}
	if err := checkLogDriver(req); err != nil {
		return err
	}
	return checkMounts(req)
}

// checkLogDriver refuses an unknown log driver, or unknown options of one.
func checkLogDriver(req *longshorev1.CreateRequest) error {
	name := req.GetLogDriver()
	switch {
	case name == "none", driver.Local(name) && len(req.GetLogOptions()) > 0:
		return invalid.Errorf("a log driver with options has a service: one of %s", driver.Services)
	case driver.Local(name): // the node's log alone, or "" for the node's default
		return nil
	case req.GetNoLog() || req.GetHold():
		return invalid.Errorf("log driver %s needs the container's own log, which this container does not have", name)
	}
	if n := req.GetLogFiles(); n > 0 && n < driver.MinFiles {
		return invalid.Errorf("log driver %s needs a log of at least %d files", name, driver.MinFiles)
	}
	_, err := driver.Parse(name, req.GetLogOptions())
	return err
}

// MaxLogFiles bounds the files of one log.
const MaxLogFiles = 100

// checkMounts refuses mounts without a source or with a target that is not usable.
func checkMounts(req *longshorev1.CreateRequest) error {
	seen := map[string]bool{}
	checkTarget := func(asked string) error {
		target := path.Clean(asked)
		switch {
		case !path.IsAbs(asked) || target == "/":
			return invalid.Errorf("mount target %q is not an absolute path below /", asked)
		case seen[target]:
			return invalid.Errorf("mount target %q is set twice", asked)
		}
		seen[target] = true
		return nil
	}
	for _, t := range req.GetTmpfs() {
		if err := checkTarget(t.GetTarget()); err != nil {
			return err
		}
	}
	for _, m := range req.GetImages() {
		if err := errors.Join(checkTarget(m.GetTarget()), checkImageMount(m)); err != nil {
			return err
		}
	}
	for _, m := range req.GetMounts() {
		if err := checkTarget(m.GetTarget()); err != nil {
			return err
		}
		switch {
		case m.GetAnonymous() && (m.GetSource() != "" || m.GetSubPath() != ""):
			return invalid.Errorf("mount %q: a volume without a name has no source", m.GetTarget())
		case m.GetAnonymous():
			continue
		case m.GetSource() == "":
			return invalid.Errorf("mount %q has no source", m.GetTarget())
		case m.GetRelabel() != "" && m.GetRelabel() != ocispec.RelabelShared && m.GetRelabel() != ocispec.RelabelPrivate:
			return invalid.Errorf("mount %q: relabel %q is neither z nor Z", m.GetTarget(), m.GetRelabel())
		case m.GetPropagation() != "" && !path.IsAbs(m.GetSource()):
			return invalid.Errorf("mount %q: only a path of the host has a propagation", m.GetTarget())
		}
		if path.IsAbs(m.GetSource()) {
			if m.GetSubPath() != "" {
				return invalid.Errorf("mount source %q has a sub-path but is not a volume", m.GetSource())
			}
			if _, err := os.Stat(m.GetSource()); err != nil {
				return invalid.Errorf("mount source: %v", err)
			}
		} else if !ValidName(m.GetSource()) {
			return invalid.Errorf("mount source %q is neither an absolute path nor a volume's name", m.GetSource())
		}
	}
	return nil
}

// Sandbox returns the configuration of the sandbox for a request. It does not check whether the networks exist.
func Sandbox(req *longshorev1.CreateRequest) (core.SandboxConfig, error) {
	ports, err := toPorts(req.GetPorts())
	if err != nil {
		return core.SandboxConfig{}, err
	}
	cfg := core.SandboxConfig{
		Key: core.Key(req.GetName()), Labels: req.GetLabels(), Runtime: req.GetRuntime(), Hostname: req.GetHostname(), Domainname: req.GetDomainname(),
		Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}, UTS: core.Namespace{Mode: core.Shared}},
		Network: core.NetworkConfig{
			Ports: ports,
			DNS:   core.DNS{Servers: req.GetDns().GetServers(), Searches: req.GetDns().GetSearches(), Options: req.GetDns().GetOptions()},
		},
	}
	own := sysctl.AnyUser()
	switch req.GetNetwork() {
	case "", "default", "bridge":
		cfg.Sysctls = own
	case core.NetworkNone:
		cfg.Network.Name = core.NetworkNone
	case "host":
		cfg.Namespaces.Net.Mode = core.Host
		if req.GetHostname()+req.GetDomainname() == "" {
			cfg.Namespaces.UTS.Mode = core.Host
		}
	default:
		id, joins := JoinedContainer(req.GetNetwork())
		if !joins {
			cfg.Network.Name, cfg.Sysctls = req.GetNetwork(), own
			break
		}
		cfg.Namespaces.Net = core.Namespace{Mode: core.Joined, Container: core.ID(id)}
		if err := checkJoined(req); err != nil {
			return cfg, err
		}
	}
	if !ownNetwork(req) {
		if len(ports) > 0 {
			return cfg, invalid.Errorf("ports cannot be published with network %s", req.GetNetwork())
		}
	}
	if cfg.Network.Hosts, err = hostLines(req); err != nil {
		return cfg, err
	}
	if err := namespaces(&cfg, req); err != nil {
		return cfg, err
	}
	if err := checkUserns(req, &cfg); err != nil {
		return cfg, err
	}
	if cfg.SELinux, err = askLabels(req); err != nil {
		return cfg, err
	}
	return cfg, errors.Join(address(&cfg, req), further(&cfg, req))
}

// askLabels returns the SELinux labels that a request asks for. As with docker a privileged container and one with the host's
// pid or IPC namespace have none, unless the request names some.
func askLabels(req *longshorev1.CreateRequest) (*core.SELinux, error) {
	if len(req.GetSelinux()) == 0 && (req.GetPrivileged() || req.GetPid() == "host" || req.GetIpc() == "host") {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	return ocispec.ParseSELinux(req.GetSelinux())
}

// maxDomain is the kernel's bound of a NIS domain name.
const maxDomain = 64

// namespaces puts the request's namespaces into cfg; its network is not among them.
func namespaces(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	for _, n := range []struct {
		kind, asked string
		ns          *core.Namespace
	}{{"pid", req.GetPid(), &cfg.Namespaces.PID}, {"ipc", req.GetIpc(), &cfg.Namespaces.IPC}, {"uts", req.GetUts(), &cfg.Namespaces.UTS}, {"cgroup", req.GetCgroupns(), &cfg.Namespaces.Cgroup}} {
		id, joins := JoinedContainer(n.asked)
		switch {
		case n.asked == "" || n.asked == "private":
		case n.asked == "host":
			n.ns.Mode = core.Host
		case n.asked == shareable && n.kind == "ipc":
			n.ns.Mode, cfg.ShmBytes = core.Shared, bytesOf(req.GetShmBytes())
		case joins && (n.kind == "ipc" || n.kind == "pid"):
			*n.ns = core.Namespace{Mode: core.Joined, Container: core.ID(id)}
		default:
			return invalid.Errorf("%s namespace %q is neither host nor private, and no other can be joined", n.kind, n.asked)
		}
	}
	if cfg.Namespaces.UTS.Mode == core.Host && req.GetHostname()+req.GetDomainname() != "" {
		return invalid.Errorf("a host name or a domain name cannot be combined with uts host")
	}
	if len(req.GetDomainname()) > maxDomain {
		return invalid.Errorf("the domain name has %d bytes, at most %d", len(req.GetDomainname()), maxDomain)
	}
	settings, err := sysctl.ParseAll(req.GetSysctls())
	if err != nil {
		return err
	}
	for _, s := range settings {
		if one := cfg.Namespaces.Joinable()[s.Kind]; one != nil && one.Mode == core.Joined {
			return invalid.Errorf("sysctl %s cannot be set in the namespace of another container: set it in the container that has it", s.Name)
		}
	}
	return nil
}

// JoinedPrefix is the prefix of a namespace that is another container's.
const JoinedPrefix = core.NetworkJoined

// shareable is the IPC namespace that other containers can join.
const shareable = "shareable"

// JoinedContainer returns the name or ID in CONTAINER:name, the form of a namespace that is another
// container's.
func JoinedContainer(namespace string) (name string, ok bool) {
	return strings.CutPrefix(namespace, JoinedPrefix)
}

// checkJoined refuses options that change a network, for a container that joins another's.
func checkJoined(req *longshorev1.CreateRequest) error {
	for option, set := range map[string]bool{
		"a host name": req.GetHostname()+req.GetDomainname() != "", "a DNS server, search domain or option": req.GetDns() != nil,
		"a line of /etc/hosts": len(req.GetHosts()) > 0, "an exposed port": len(req.GetExpose()) > 0,
	} {
		if set {
			return invalid.Errorf("%s cannot be combined with the network of another container: it is that container's", option)
		}
	}
	return nil
}

// ownNetwork reports whether the container gets interfaces of its own.
func ownNetwork(req *longshorev1.CreateRequest) bool {
	_, joins := JoinedContainer(req.GetNetwork())
	return req.GetNetwork() != core.NetworkNone && req.GetNetwork() != "host" && !joins
}

// checkUserns refuses options that conflict with a user namespace of the container's own.
func checkUserns(req *longshorev1.CreateRequest, cfg *core.SandboxConfig) error {
	switch req.GetUserns() {
	case "", "host":
		return nil
	case privateUsers:
	default:
		return invalid.Errorf("user namespace %q is neither host nor private", req.GetUserns())
	}
	for option, asked := range map[string]bool{
		"privileged": req.GetPrivileged(), "ipc host": req.GetIpc() == "host", "pid host": req.GetPid() == "host", "uts host": req.GetUts() == "host", "cgroupns host": req.GetCgroupns() == "host", "network host": req.GetNetwork() == "host",
	} {
		if asked {
			return invalid.Errorf("a private user namespace cannot be combined with %s", option)
		}
	}
	cfg.Namespaces.User.Mode, cfg.Users.Own = core.Shared, true
	return nil
}

const privateUsers = "private"

// UserNeeds returns the needs of a container that may call for the node's ids.
func UserNeeds(req *longshorev1.CreateRequest, img core.Image) (n core.UserNeeds, err error) {
	for _, r := range []struct {
		reason  string
		applies bool
	}{
		{"it asks for the node's ids", req.GetUserns() == "host"},
		{"it is privileged", req.GetPrivileged()},
		{"it has the network of another container", strings.HasPrefix(req.GetNetwork(), JoinedPrefix)},
	} {
		if r.applies && n.Host == "" {
			n.Host = r.reason
		}
	}
	if n.Caps, err = ocispec.Capabilities(ocispec.DefaultCapabilities(), req.GetCapAdd(), req.GetCapDrop()); err != nil {
		return n, err
	}
	for _, name := range req.GetDevices() {
		if !strings.HasPrefix(name, "/") {
			continue
		}
		d, err := ocispec.ParseDevice(name)
		if err != nil {
			return n, err
		}
		found, _, err := ocispec.HostDevice(d)
		if err != nil {
			return n, err
		}
		n.Devices = append(n.Devices, found...)
	}
	for _, m := range req.GetMounts() {
		if path.IsAbs(m.GetSource()) {
			n.Paths = append(n.Paths, path.Clean(m.GetSource()))
		}
	}
	return n, nil
}
