package convert

import (
	"path"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// SandboxProfiles refuses a pod's profiles that nothing here can apply, and the cgroup namespace, which only
// containers have.
func SandboxProfiles(sc *v1.LinuxSandboxSecurityContext) error {
	if sc.GetNamespaceOptions().GetCgroupnsOptions() != nil {
		return invalid.Errorf("sandbox: cgroupns_options: only containers have a cgroup namespace")
	}
	return profiles("sandbox", sc.GetSeccomp(), sc.GetApparmor())
}

// ContainerProfiles refuses a container's profiles that nothing here can apply.
func ContainerProfiles(sc *v1.LinuxContainerSecurityContext) error {
	return profiles("container", sc.GetSeccomp(), sc.GetApparmor())
}

// profiles refuses an AppArmor profile of type OCI, and fields that contradict the type of a profile. If it ignored them,
// a client would run without the filter that it named.
func profiles(object string, seccomp, apparmor *v1.SecurityProfile) error {
	for _, p := range []struct {
		field string
		*v1.SecurityProfile
	}{{"seccomp", seccomp}, {"apparmor", apparmor}} {
		bad := func(format string, args ...any) error {
			return invalid.Errorf("%s: %s: "+format, append([]any{object, p.field}, args...)...)
		}
		base := p.GetBaseProfile()
		switch oci := p.GetProfileType() == v1.SecurityProfile_OCI; {
		case oci && p.field == "apparmor":
			return bad("profile type OCI is possible for seccomp only")
		case oci && p.GetOciRef() == "":
			return bad("profile type OCI needs oci_ref")
		case oci && p.GetLocalhostRef() != "":
			return bad("localhost_ref needs profile type Localhost; the base of an OCI profile is in base_profile")
		case oci && base.GetType() == v1.SecurityProfileBase_Localhost && !path.IsAbs(base.GetLocalhostRef()):
			return bad("base_profile: localhost_ref %q is not an absolute path", base.GetLocalhostRef())
		case oci && base.GetType() == v1.SecurityProfileBase_RuntimeDefault && base.GetLocalhostRef() != "":
			return bad("base_profile: localhost_ref needs type Localhost")
		case !oci && p.GetOciRef() != "":
			return bad("oci_ref needs profile type OCI")
		case !oci && base != nil:
			return bad("base_profile needs profile type OCI")
		}
	}
	return nil
}
