package ocispec

import (
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// DefaultSeccomp puts the default filter into a spec, fitted to this kernel and
// to the capabilities in the spec's bounding set: set those first. nil
// capabilities are none.
func DefaultSeccomp(s *specs.Spec) error {
	profile, err := seccomp.GetDefaultProfile(withCapabilities(s))
	if err != nil {
		return fmt.Errorf("default seccomp profile: %w: %w", err, errdefs.ErrInternal)
	}
	setSeccomp(s, profile)
	return nil
}

// LoadSeccomp puts a filter in Docker's or the OCI spec's JSON form into a spec.
// InvalidArgument when it cannot be read.
func LoadSeccomp(s *specs.Spec, body []byte) error {
	profile, err := seccomp.LoadProfile(string(body), withCapabilities(s))
	if err != nil {
		return fmt.Errorf("seccomp profile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	setSeccomp(s, profile)
	return nil
}

// withCapabilities is s with non-nil fields, which the profiles read without checks.
func withCapabilities(s *specs.Spec) *specs.Spec {
	if s.Process != nil && s.Process.Capabilities != nil {
		return s
	}
	c := specs.Spec{Process: &specs.Process{}}
	if s.Process != nil {
		*c.Process = *s.Process
	}
	c.Process.Capabilities = &specs.LinuxCapabilities{}
	return &c
}

func setSeccomp(s *specs.Spec, profile *specs.LinuxSeccomp) {
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	s.Linux.Seccomp = profile
}

// DefaultProfile is the name of the AppArmor profile of containers that name none.
const DefaultProfile = "longshore-default"

// AppArmorEnabled reports whether the kernel has AppArmor switched on.
func AppArmorEnabled() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// AppArmor puts the name of an AppArmor profile into a spec: "" is the default profile, "unconfined"
// is none. Node.Clamp takes it out where the kernel has no AppArmor.
func AppArmor(s *specs.Spec, profile string) {
	switch profile {
	case "":
		profile = DefaultProfile
	case "unconfined":
		profile = ""
	}
	s.Process.ApparmorProfile = profile
}

// SELinuxEnabled reports whether the kernel has SELinux switched on.
func SELinuxEnabled() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// SELinux is a label in its four parts; empty ones are left to the default.
type SELinux struct{ User, Role, Type, Level string }

// Labels fills in missing parts and returns the labels of the process and of its files. All empty
// is no label at all. InvalidArgument when a part has a separator in it (but Level, which has
// them).
func (l SELinux) Labels() (process, mount string, err error) {
	if l == (SELinux{}) {
		return "", "", nil
	}
	for _, part := range []string{l.User, l.Role, l.Type} {
		if strings.ContainsAny(part, ": \x00") {
			return "", "", fmt.Errorf("selinux label part %q: %w", part, errdefs.ErrInvalidArgument)
		}
	}
	or := func(s, d string) string {
		if s == "" {
			return d
		}
		return s
	}
	user, level := or(l.User, "system_u"), or(l.Level, "s0")
	return strings.Join([]string{user, or(l.Role, "system_r"), or(l.Type, "container_t"), level}, ":"),
		strings.Join([]string{user, "object_r", "container_file_t", level}, ":"), nil
}
