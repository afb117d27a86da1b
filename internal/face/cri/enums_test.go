package cri

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestUnknownValuesOfEnumsAreRefused: no handler reads one as the mildest that it knows.
func TestUnknownValuesOfEnumsAreRefused(t *testing.T) {
	n := newTestNode(t)
	found := 0
	for _, c := range rpcs(t) {
		if c.name == "RuntimeService/GetContainerEvents" {
			continue // it has none, and never ends
		}
		found += wiretest.UnknownEnums(t, c.request, func(path string, req proto.Message) {
			_, err := n.call(t.Context(), c, req)
			wantCode(t, c.name+" with "+path, err, codes.InvalidArgument)
		})
	}
	if found < 30 {
		t.Errorf("%d enums were found", found)
	}
	// The very requests that were read as milder ones, whole but for the enum.
	pod := n.podConfig("unknown")
	pod.Linux.SecurityContext.Seccomp = &v1.SecurityProfile{ProfileType: 4}
	_, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod})
	wantCode(t, "a sandbox with seccomp of type 4", err, codes.InvalidArgument)
	create := n.containerRequest(n.pod(t, "p"), "c")
	create.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{Apparmor: &v1.SecurityProfile{ProfileType: 4}}}
	_, err = n.CreateContainer(t.Context(), create)
	wantCode(t, "a container with AppArmor of type 4", err, codes.InvalidArgument)
}
