package convert

import (
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

// profiles refuses profiles of type OCI, and the fields of that type in a profile of another:
// otherwise a client would run without the filter that it named.
func profiles(object string, seccomp, apparmor *v1.SecurityProfile) error {
	for _, p := range []struct {
		field string
		*v1.SecurityProfile
	}{{"seccomp", seccomp}, {"apparmor", apparmor}} {
		switch {
		case p.GetProfileType() == v1.SecurityProfile_OCI:
			return invalid.Errorf("%s: %s: profile type OCI: not supported", object, p.field)
		case p.GetOciRef() != "":
			return invalid.Errorf("%s: %s: oci_ref needs profile type OCI", object, p.field)
		case p.GetBaseProfile() != nil:
			return invalid.Errorf("%s: %s: base_profile needs profile type OCI", object, p.field)
		}
	}
	return nil
}
