package cri

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a containerAsk) privileged() bool {
	return a.req.GetConfig().GetLinux().GetSecurityContext().GetPrivileged()
}

// capabilityNames are all of Linux, in the kernel's order.
func capabilityNames() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
		"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN",
		"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE",
		"CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
		"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}

// defaultCapabilities are what every container engine leaves a container.
func defaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// capabilities: ALL first, to add or to drop, then single ones are added, then
// single ones dropped.
func capabilities(sc *v1.LinuxContainerSecurityContext) (*specs.LinuxCapabilities, error) {
	if sc.GetPrivileged() {
		all := capabilityNames()
		return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}, nil
	}
	add, addAll, err := capabilityList(sc.GetCapabilities().GetAddCapabilities())
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := capabilityList(sc.GetCapabilities().GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	ambient, ambientAll, err := capabilityList(sc.GetCapabilities().GetAddAmbientCapabilities())
	if err != nil {
		return nil, err
	}
	caps := defaultCapabilities()
	if addAll {
		caps = capabilityNames()
	}
	if dropAll {
		caps = nil
	}
	if ambientAll {
		ambient = capabilityNames()
	}
	for _, c := range slices.Concat(add, ambient) {
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	dropped := func(c string) bool { return slices.Contains(drop, c) }
	caps, ambient = slices.DeleteFunc(caps, dropped), slices.DeleteFunc(ambient, dropped)
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps, Inheritable: ambient, Ambient: ambient}, nil
}

// capabilityList takes names with CAP_ or without, in any case.
func capabilityList(in []string) (out []string, all bool, err error) {
	known := capabilityNames()
	for _, s := range in {
		c := strings.ToUpper(s)
		if c == "ALL" || c == "CAP_ALL" {
			all = true
			continue
		}
		c = "CAP_" + strings.TrimPrefix(c, "CAP_")
		if !slices.Contains(known, c) {
			return nil, false, invalid("container: unknown capability %q", s)
		}
		out = append(out, c)
	}
	return out, all, nil
}

// paths are hidden or made read-only unless the container is privileged. A
// request without a security context gets the usual ones; one with a context
// says itself, also when it says none.
func (a containerAsk) paths(s *specs.Spec) {
	sc := a.req.GetConfig().GetLinux().GetSecurityContext()
	switch {
	case sc.GetPrivileged():
	case sc == nil:
		s.Linux.MaskedPaths = []string{
			"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
			"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
		}
		s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	default:
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = sc.GetMaskedPaths(), sc.GetReadonlyPaths()
	}
}

// seccompKind is the profile asked for in either form of the API; none at all
// is unconfined.
func seccompKind(sc *v1.LinuxContainerSecurityContext) (kind v1.SecurityProfile_ProfileType, file string, err error) {
	if sc.GetPrivileged() {
		return v1.SecurityProfile_Unconfined, "", nil
	}
	if p := sc.GetSeccomp(); p != nil {
		kind, file = p.GetProfileType(), p.GetLocalhostRef()
	} else {
		switch old := sc.GetSeccompProfilePath(); { //nolint:staticcheck // older clients send it
		case old == "" || old == "unconfined":
			kind = v1.SecurityProfile_Unconfined
		case old == "runtime/default" || old == "docker/default":
			kind = v1.SecurityProfile_RuntimeDefault
		case strings.HasPrefix(old, "localhost/"):
			kind, file = v1.SecurityProfile_Localhost, strings.TrimPrefix(old, "localhost/")
		default:
			return 0, "", invalid("container: seccomp profile %q", old)
		}
	}
	switch kind {
	case v1.SecurityProfile_RuntimeDefault, v1.SecurityProfile_Unconfined:
		return kind, "", nil
	case v1.SecurityProfile_Localhost:
		if !path.IsAbs(file) || nul(file) {
			return 0, "", invalid("container: seccomp profile %q is not an absolute path", file)
		}
		return kind, file, nil
	}
	return 0, "", invalid("container: seccomp profile type %d", kind)
}

// maxProfile bounds a seccomp profile read from a file.
const maxProfile = 4 << 20

// readSeccomp reads the profile that a security context names; "" when it names
// no file.
func readSeccomp(sc *v1.LinuxContainerSecurityContext) (string, error) {
	kind, file, err := seccompKind(sc)
	if err != nil || kind != v1.SecurityProfile_Localhost {
		return "", err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", invalid("container: seccomp profile: %v", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProfile))
	if err != nil {
		return "", invalid("container: seccomp profile: %v", err)
	}
	return string(b), nil
}

// filter sets the seccomp profile. It comes after the capabilities, which
// decide on some of its calls.
func (a containerAsk) filter(s *specs.Spec) error {
	kind, file, err := seccompKind(a.req.GetConfig().GetLinux().GetSecurityContext())
	if err != nil {
		return err
	}
	switch kind {
	case v1.SecurityProfile_RuntimeDefault:
		s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s)
	case v1.SecurityProfile_Localhost:
		if s.Linux.Seccomp, err = seccomp.LoadProfile(a.seccomp, s); err != nil {
			return invalid("container: seccomp profile %s: %v", file, err)
		}
	case v1.SecurityProfile_Unconfined:
	}
	if err != nil {
		return fmt.Errorf("container: default seccomp profile: %w: %w", err, errdefs.ErrInternal)
	}
	return nil
}

// apparmor is the name of a profile that the node has loaded; the runtime's
// default is left to the node.
func apparmor(sc *v1.LinuxContainerSecurityContext) string {
	if sc.GetPrivileged() {
		return ""
	}
	if p := sc.GetApparmor(); p != nil {
		if p.GetProfileType() == v1.SecurityProfile_Localhost {
			return strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
		}
		return ""
	}
	name, _ := strings.CutPrefix(sc.GetApparmorProfile(), "localhost/") //nolint:staticcheck // older clients send it
	if name == "runtime/default" || name == "unconfined" {
		return ""
	}
	return name
}
