package cri

import (
	"os"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// TestRightsThatDoNotFitAreRefused: a privileged container needs a privileged
// sandbox, and a profile a kernel that enforces it.
func TestRightsThatDoNotFitAreRefused(t *testing.T) {
	n := newTestNode(t)
	create := func(pod string, sc *v1.LinuxContainerSecurityContext) error {
		req := n.containerRequest(pod, "c")
		req.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: sc}
		_, err := n.CreateContainer(t.Context(), req)
		return err
	}
	plain := n.pod(t, "plain")
	wantCode(t, "privileged in a plain sandbox", create(plain, &v1.LinuxContainerSecurityContext{Privileged: true}), codes.InvalidArgument)
	if !ocispec.AppArmorEnabled() {
		wantCode(t, "a profile", create(plain, &v1.LinuxContainerSecurityContext{
			Apparmor: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "mine"},
		}), codes.InvalidArgument)
	}
	cfg := n.podConfig("free")
	cfg.Linux.SecurityContext.Privileged = true
	r, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if err := create(r.GetPodSandboxId(), &v1.LinuxContainerSecurityContext{Privileged: true}); err != nil {
		t.Error(err)
	}
}

// TestHostnameIsThatOfUname: HOSTNAME is the name that uname prints, in a sandbox without a name
// and on the node's network too.
func TestHostnameIsThatOfUname(t *testing.T) {
	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		hostname string
		net      v1.NamespaceMode
		want     func(sb string) string
	}{
		"named":                 {"web", v1.NamespaceMode_POD, func(string) string { return "web" }},
		"without a name":        {"", v1.NamespaceMode_POD, func(sb string) string { return core.ID(sb).Short() }},
		"on the node's network": {"", v1.NamespaceMode_NODE, func(string) string { return node }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			cfg := n.podConfig("p")
			cfg.Hostname, cfg.Linux.SecurityContext.NamespaceOptions.Network = c.hostname, c.net
			r, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				t.Fatal(err)
			}
			id := n.container(t, r.GetPodSandboxId(), "c")
			if env := n.Runtime.Spec(core.ID(id)).Process.Env; !slices.Contains(env, "HOSTNAME="+c.want(r.GetPodSandboxId())) {
				t.Errorf("environment %q", env)
			}
		})
	}
}
