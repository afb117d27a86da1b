package cri

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// capabilities returns the requested capabilities applied to the default ones. Ambient ones are in
// every set, for programs that are not root.
func capabilities(sc *v1.LinuxContainerSecurityContext) (*specs.LinuxCapabilities, error) {
	if sc.GetPrivileged() {
		return ocispec.CapabilitySets(ocispec.AllCapabilities()), nil
	}
	c := sc.GetCapabilities()
	ambient, err := ocispec.Capabilities(nil, c.GetAddAmbientCapabilities(), c.GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	caps, err := ocispec.Capabilities(ocispec.DefaultCapabilities(), slices.Concat(c.GetAddCapabilities(), ambient), c.GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	sets := ocispec.CapabilitySets(caps)
	if len(ambient) > 0 {
		sets.Inheritable, sets.Ambient = ambient, ambient
	}
	return sets, nil
}

// paths are hidden or made read-only unless the container is privileged. A
// request without a security context gets the usual ones; one with a context
// says itself, also when it says none.
func (a containerAsk) paths(s *specs.Spec) {
	sc := a.req.GetConfig().GetLinux().GetSecurityContext()
	switch {
	case sc.GetPrivileged():
	case sc == nil:
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = ocispec.MaskedPaths(), ocispec.ReadonlyPaths()
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
			return 0, "", invalid.Errorf("container: seccomp profile %q", old)
		}
	}
	switch kind {
	case v1.SecurityProfile_RuntimeDefault, v1.SecurityProfile_Unconfined, v1.SecurityProfile_OCI:
		return kind, "", nil
	case v1.SecurityProfile_Localhost:
		if !path.IsAbs(file) || nul(file) {
			return 0, "", invalid.Errorf("container: seccomp profile %q is not an absolute path", file)
		}
		return kind, file, nil
	}
	return 0, "", invalid.Errorf("container: seccomp profile type %d", kind)
}

// maxProfile bounds a seccomp profile read from a file.
const maxProfile = 4 << 20

// readSeccomp reads the profile that a security context names; nil when it names
// no file.
func readSeccomp(sc *v1.LinuxContainerSecurityContext) ([]byte, error) {
	file, err := seccompFile(sc)
	if err != nil || file == "" {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, invalid.Errorf("container: seccomp profile: %v", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProfile))
	if err != nil {
		return nil, invalid.Errorf("container: seccomp profile: %v", err)
	}
	return b, nil
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
		return ocispec.DefaultSeccomp(s)
	case v1.SecurityProfile_OCI:
		return a.intersect(s)
	case v1.SecurityProfile_Localhost:
		if err := ocispec.LoadSeccomp(s, a.seccomp); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	case v1.SecurityProfile_Unconfined:
	}
	return nil
}

// readDevices looks the asked devices up; a directory stands for all devices
// below it. A privileged container gets all of the node's, too, unless bare.
func readDevices(cfg *v1.ContainerConfig, bare bool) (list []specs.LinuxDevice, rules []specs.LinuxDeviceCgroup, err error) {
	if cfg.GetLinux().GetSecurityContext().GetPrivileged() && !bare {
		if list, err = ocispec.AllDevices(); err != nil {
			return nil, nil, err
		}
		rules = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	for _, d := range cfg.GetDevices() {
		if nul(d.GetHostPath()+d.GetContainerPath()) || len(d.GetPermissions()) > 3 {
			return nil, nil, invalid.Errorf("device %q at %q, permissions %q", d.GetHostPath(), d.GetContainerPath(), d.GetPermissions())
		}
		found, open, err := ocispec.HostDevice(ocispec.Device{Source: d.GetHostPath(), Target: d.GetContainerPath(), Access: d.GetPermissions()})
		if err != nil {
			return nil, nil, invalid.Errorf("%v", err)
		}
		list, rules = append(list, found...), append(rules, open...)
	}
	return list, rules, nil
}

// fitRights refuses rights that would have no effect: a privileged container in an unprivileged
// sandbox, and a profile that nothing enforces.
func fitRights(sc *v1.LinuxContainerSecurityContext, pod *v1.RunPodSandboxRequest) error {
	if sc.GetPrivileged() && !pod.GetConfig().GetLinux().GetSecurityContext().GetPrivileged() {
		return invalid.Errorf("a privileged container in a sandbox that is not privileged")
	}
	if name := apparmor(sc); name != "" && name != ocispec.DefaultProfile && !ocispec.AppArmorEnabled() {
		return invalid.Errorf("apparmor profile %s: apparmor is off on this node", name)
	}
	return nil
}

// apparmor is the name of the container's AppArmor profile, "" for none. A container that asks for
// no profile gets the default profile, as with containerd and CRI-O.
func apparmor(sc *v1.LinuxContainerSecurityContext) string {
	if sc.GetPrivileged() {
		return ""
	}
	if p := sc.GetApparmor(); p != nil {
		switch p.GetProfileType() {
		case v1.SecurityProfile_Localhost:
			return strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
		case v1.SecurityProfile_Unconfined:
			return ""
		case v1.SecurityProfile_RuntimeDefault:
		}
		return ocispec.DefaultProfile
	}
	name, _ := strings.CutPrefix(sc.GetApparmorProfile(), "localhost/") //nolint:staticcheck // older clients send it
	switch name {
	case "", "runtime/default":
		return ocispec.DefaultProfile
	case "unconfined":
		return ""
	}
	return name
}
