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
	oci, onNode := v1.SecurityProfile_OCI, v1.SecurityProfileBase_Localhost
	const ref = "r.example/p@sha256:0"
	for _, c := range []struct {
		p              *v1.SecurityProfile
		want, apparmor string
	}{
		{&v1.SecurityProfile{}, "", ""},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref}, "", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref, BaseProfile: &v1.SecurityProfileBase{}}, "", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref, BaseProfile: &v1.SecurityProfileBase{Type: onNode, LocalhostRef: "/p.json"}}, "", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci}, "needs oci_ref", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref, LocalhostRef: "/p.json"}, "localhost_ref needs profile type Localhost", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref, BaseProfile: &v1.SecurityProfileBase{Type: onNode}}, "not an absolute path", "for seccomp only"},
		{&v1.SecurityProfile{ProfileType: oci, OciRef: ref, BaseProfile: &v1.SecurityProfileBase{LocalhostRef: "/p.json"}}, "needs type Localhost", "for seccomp only"},
		{&v1.SecurityProfile{OciRef: ref}, "oci_ref needs profile type OCI", "oci_ref needs profile type OCI"},
		{&v1.SecurityProfile{BaseProfile: &v1.SecurityProfileBase{}}, "base_profile needs profile type OCI", "base_profile needs profile type OCI"},
	} {
		for name, err := range map[string]error{
			"seccomp of sandbox":    convert.SandboxProfiles(&v1.LinuxSandboxSecurityContext{Seccomp: c.p}),
			"apparmor of sandbox":   convert.SandboxProfiles(&v1.LinuxSandboxSecurityContext{Apparmor: c.p}),
			"seccomp of container":  convert.ContainerProfiles(&v1.LinuxContainerSecurityContext{Seccomp: c.p}),
			"apparmor of container": convert.ContainerProfiles(&v1.LinuxContainerSecurityContext{Apparmor: c.p}),
		} {
			want := c.want
			if strings.HasPrefix(name, "apparmor") {
				want = c.apparmor
			}
			if want == "" && err != nil || want != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %v: %v; want %q", name, c.p, err, want)
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
