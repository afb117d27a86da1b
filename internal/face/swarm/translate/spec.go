package translate

import (
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
)

// maxHostname is the kernel's.
const maxHostname = 64

// Sandbox is the task as the engine's sandbox.
func (a Task) Sandbox() (core.SandboxConfig, error) {
	cfg := core.SandboxConfig{Key: core.Key(a.Swarm.GetId()), Labels: a.Labels(), Hostname: a.spec.GetHostname()}
	if l := a.spec.GetPrivileges().GetSelinuxContext(); !l.GetDisable() {
		cfg.SELinux = &core.SELinux{User: l.GetUser(), Role: l.GetRole(), Type: l.GetType(), Level: l.GetLevel()}
	}
	if len(cfg.Hostname) > maxHostname {
		return cfg, invalid.Errorf("hostname %q is longer than %d bytes", cfg.Hostname, maxHostname)
	}
	cfg.Namespaces.Net.Mode, cfg.Namespaces.UTS.Mode = core.Shared, core.Shared
	host, err := a.network()
	if err != nil {
		return cfg, err
	}
	if host {
		cfg.Namespaces.Net.Mode = core.Host
		if a.spec.GetHostname() == "" {
			cfg.Namespaces.UTS.Mode, cfg.Hostname = core.Host, ""
		}
	} else {
		cfg.Sysctls = sysctl.AnyUser() // as dockerd; the task's own are set after these
		if err := a.join(&cfg.Network); err != nil {
			return cfg, err
		}
	}
	if d := a.spec.GetDnsConfig(); d != nil {
		cfg.Network.DNS = core.DNS{Servers: d.GetNameservers(), Searches: d.GetSearch(), Options: d.GetOptions()}
	}
	cfg.Network.Hosts, err = a.hosts()
	return cfg, err
}

// ShortName reports whether the task's hostname is the container's short ID.
func ShortName(a Task) bool {
	host, err := a.network()
	return err == nil && !host && a.spec.GetHostname() == ""
}

// join has the sandbox on the task's networks, with its ports.
func (a Task) join(cfg *core.NetworkConfig) (err error) {
	if cfg.Ports, err = a.ports(); err != nil {
		return err
	}
	if cfg.Attach, err = attach(a); err != nil {
		return err
	}
	if last := len(cfg.Attach) - 1; last >= 0 && cfg.Attach[last].Network != core.NetworkDefault && len(cfg.Ports) > 0 {
		return invalid.Errorf("port %d of the node leads to a task that is on internal networks alone", cfg.Ports[0].Host)
	}
	return nil
}

// network reports whether the task is on the node's network; else it is on our bridge, on overlay
// networks, or on both.
func (a Task) network() (host bool, err error) {
	for _, n := range a.Swarm.GetNetworks() {
		spec := n.GetNetwork().GetSpec()
		switch name, driver := spec.GetAnnotations().GetName(), driverOf(n); {
		case spec.GetIngress() && a.Node.Ingress == IngressNone:
			if _, err := a.ports(); err != nil {
				return false, err // it names the port
			}
			return false, notServed("the swarm's ingress network (see face.swarm.ingress)")
		case isOverlay(n): // of published ports too; with IngressHost our bridge serves them
		case driver == "host":
			host = true
		case driver == "bridge" && name == "bridge":
		default:
			return false, notServed("network %s of the driver %q", name, driver)
		}
	}
	if host && len(a.Swarm.GetNetworks()) > 1 {
		return false, invalid.Errorf("the task is on the node's network and on others")
	}
	return host, nil
}

// ports are those that the task has on this node alone, one for each that it publishes so; 0 is one that
// the node chooses.
func (a Task) ports() (list []core.Port, err error) {
	seen := map[core.Port]bool{}
	for _, p := range a.Swarm.GetEndpoint().GetPorts() {
		if p.GetPublishMode() != swarmv1.PortConfig_HOST {
			switch a.Node.Ingress {
			case IngressHost:
			case IngressNone:
				return nil, notServed("port %d of the whole swarm (publish it with mode=host, or see face.swarm.ingress)", p.GetPublishedPort())
			default: // the port of a network
				continue
			}
		}
		q, err := readPort(p, seen)
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	return list, nil
}

// readPort reads a port that is published, beside those in seen.
func readPort(p *swarmv1.PortConfig, seen map[core.Port]bool) (q core.Port, err error) {
	if p.GetTargetPort() < 1 || p.GetTargetPort() > math.MaxUint16 || p.GetPublishedPort() > math.MaxUint16 {
		return q, invalid.Errorf("port %d to %d", p.GetPublishedPort(), p.GetTargetPort())
	}
	q = core.Port{Proto: strings.ToLower(p.GetProtocol().String()), Host: uint16(p.GetPublishedPort()), Container: uint16(p.GetTargetPort())}
	if key := (core.Port{Proto: q.Proto, Host: q.Host}); q.Host != 0 {
		if seen[key] {
			return q, invalid.Errorf("port %d/%s is published twice", q.Host, q.Proto)
		}
		seen[key] = true
	}
	return q, nil
}

// Exclusive reports whether the task has something that no other one can have meanwhile: a device, or a
// port of the node that is not for the node to choose.
func (a Task) Exclusive() bool {
	return len(a.Devices()) > 0 || slices.ContainsFunc(a.Swarm.GetEndpoint().GetPorts(), func(p *swarmv1.PortConfig) bool {
		return p.GetPublishedPort() != 0 && (p.GetPublishMode() == swarmv1.PortConfig_HOST || a.Node.Ingress == IngressHost)
	})
}

// hosts are lines of /etc/hosts, "ADDRESS NAME...", by their addresses. A task on the node's own
// network reaches the node at its loopback address.
func (a Task) hosts() (map[string][]string, error) {
	var hosts map[string][]string
	for _, line := range a.spec.GetHosts() {
		words := strings.Fields(line)
		if len(words) < 2 {
			return nil, invalid.Errorf("host %q is not ADDRESS NAME", line)
		}
		if words[0] == core.HostGateway {
			host, err := a.network()
			if err != nil {
				return nil, err
			}
			if host {
				words[0] = "127.0.0.1"
			}
		} else if _, err := netip.ParseAddr(words[0]); err != nil {
			return nil, invalid.Errorf("host %q: %v", line, err)
		}
		if hosts == nil {
			hosts = map[string][]string{}
		}
		hosts[words[0]] = append(hosts[words[0]], strings.Join(words[1:], " "))
	}
	return hosts, nil
}

// base is the spec as far as the task alone decides it.
func (a Task) base() (*specs.Spec, error) {
	s, c := ocispec.New(), a.spec
	caps, err := ocispec.Capabilities(ocispec.DefaultCapabilities(), c.GetCapabilityAdd(), c.GetCapabilityDrop())
	if err != nil {
		return nil, err
	}
	p := s.Process
	p.Terminal, p.NoNewPrivileges, p.Capabilities = c.GetTty(), c.GetPrivileges().GetNoNewPrivileges(), ocispec.CapabilitySets(caps)
	if score := c.GetOomScoreAdj(); score != 0 {
		if score < -1000 || score > 1000 {
			return nil, invalid.Errorf("oom score %d", score)
		}
		n := int(score)
		p.OOMScoreAdj = &n
	}
	for _, u := range c.GetUlimits() {
		l, err := ocispec.Rlimit(u.GetName() + "=" + strconv.FormatInt(u.GetSoft(), 10) + ":" + strconv.FormatInt(u.GetHard(), 10))
		if err != nil {
			return nil, err
		}
		p.Rlimits = append(p.Rlimits, l)
	}
	devices := s.Linux.Resources.Devices
	if s.Linux.Resources, err = a.resources(); err != nil {
		return nil, err
	}
	s.Linux.Resources.Devices = devices
	if _, err := sysctl.ParseAll(c.GetSysctls()); err != nil {
		return nil, err
	}
	s.Linux.Sysctl = c.GetSysctls()
	mounts, err := a.ownMounts()
	if err != nil {
		return nil, err
	}
	ocispec.AddMounts(s, mounts)
	if l := a.spec.GetPrivileges().GetSelinuxContext(); !l.GetDisable() {
		if _, _, err := (ocispec.SELinux{User: l.GetUser(), Role: l.GetRole(), Type: l.GetType(), Level: l.GetLevel()}).Labels(); err != nil {
			return nil, err
		}
	}
	if a.spec.GetPrivileges().GetApparmor().GetMode() != swarmv1.Privileges_AppArmorOpts_DISABLED {
		ocispec.AppArmor(s, "")
	}
	return s, a.filter(s)
}

// filter puts up the system call filter that the task asks for.
func (a Task) filter(s *specs.Spec) error {
	switch o := a.spec.GetPrivileges().GetSeccomp(); o.GetMode() {
	case swarmv1.Privileges_SeccompOpts_UNCONFINED:
		return nil
	case swarmv1.Privileges_SeccompOpts_CUSTOM:
		return ocispec.LoadSeccomp(s, o.GetProfile())
	case swarmv1.Privileges_SeccompOpts_DEFAULT:
		return ocispec.DefaultSeccomp(s)
	default:
		return notServed("seccomp mode %s", o.GetMode())
	}
}

// resources are the task's limits and reservations.
func (a Task) resources() (*specs.LinuxResources, error) {
	need := a.Swarm.GetSpec().GetResources()
	limits, kept := need.GetLimits(), need.GetReservations()
	l := ocispec.Limits{Memory: limits.GetMemoryBytes(), CPUs: float64(limits.GetNanoCpus()) / 1e9, Pids: max(a.spec.GetPidsLimit(), 0)}
	if s := need.GetSwapBytes(); s != nil {
		l.Swap = s.GetValue()
	}
	r, err := l.Resources()
	if err != nil {
		return nil, err
	}
	if n := kept.GetMemoryBytes(); n < 0 {
		return nil, invalid.Errorf("a memory reservation of %d bytes", n)
	} else if n > 0 {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		r.Memory.Reservation = &n
	}
	if s := need.GetMemorySwappiness(); s != nil && s.GetValue() >= 0 {
		if s.GetValue() > 100 {
			return nil, invalid.Errorf("a swappiness of %d", s.GetValue())
		}
		n := uint64(s.GetValue())
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		r.Memory.Swappiness = &n
	}
	return r, nil
}

// user returns the task's user: its own, or the image's.
func (a Task) user(root *os.Root, image string) (ocispec.User, error) {
	user, err := ocispec.UserNamed(a.spec.GetUser())(root, image)
	if err != nil || len(a.spec.GetGroups()) == 0 {
		return user, err
	}
	files, err := ocispec.ReadUserFiles(root)
	if err != nil {
		return user, err
	}
	for _, g := range a.spec.GetGroups() {
		gid, err := files.GroupID(g)
		if err != nil {
			return user, err
		}
		user.AddGroup(gid)
	}
	return user, nil
}
