package convert_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

// TestProfilesThatHaveNoEffect shows that no field of a security profile is ignored.
func TestProfilesThatHaveNoEffect(t *testing.T) {
	oci := v1.SecurityProfile_OCI
	for _, c := range []struct {
		p    *v1.SecurityProfile
		want string
	}{
		{&v1.SecurityProfile{}, ""},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: "r.example/p@sha256:0"}, "profile type OCI"},
		{&v1.SecurityProfile{OciRef: "r.example/p@sha256:0"}, "oci_ref"},
		{&v1.SecurityProfile{BaseProfile: &v1.SecurityProfileBase{}}, "base_profile"},
	} {
		for name, err := range map[string]error{
			"seccomp of sandbox":    convert.SandboxProfiles(&v1.LinuxSandboxSecurityContext{Seccomp: c.p}),
			"apparmor of sandbox":   convert.SandboxProfiles(&v1.LinuxSandboxSecurityContext{Apparmor: c.p}),
			"seccomp of container":  convert.ContainerProfiles(&v1.LinuxContainerSecurityContext{Seccomp: c.p}),
			"apparmor of container": convert.ContainerProfiles(&v1.LinuxContainerSecurityContext{Apparmor: c.p}),
		} {
			switch {
			case c.want == "" && err == nil:
			case err == nil || c.want == "" || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want):
				t.Errorf("%s %v: %v; want %q", name, c.p, err, c.want)
			}
		}
	}
}

func TestSandboxesHaveNoCgroupNamespace(t *testing.T) {
	own := &v1.NamespaceOption{CgroupnsOptions: &v1.CgroupNamespace{Mode: v1.NamespaceMode_CONTAINER}}
	err := convert.SandboxProfiles(&v1.LinuxSandboxSecurityContext{NamespaceOptions: own})
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "cgroupns_options") {
		t.Error(err)
	}
}
