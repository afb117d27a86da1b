package enums_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	_ "github.com/longshore/longshore/api/cri1alpha"
	_ "github.com/longshore/longshore/api/kata/v1"
	_ "github.com/longshore/longshore/api/longshore/v1"
	_ "github.com/longshore/longshore/api/nomad/driver"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/enums"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestEveryEnumOfEveryRequestIsChecked sets each enum that a request of a served protocol can hold to a value above its last.
func TestEveryEnumOfEveryRequestIsChecked(t *testing.T) {
	found := map[string]int{}
	count := func(protocol string, m protoreflect.MessageDescriptor) {
		mt, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
		if err != nil {
			t.Fatal(err)
		}
		found[protocol] += wiretest.UnknownEnums(t, mt, func(path string, req proto.Message) {
			err := enums.Check(req)
			last := path[strings.LastIndexByte(path, '.')+1:]
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), last) {
				t.Errorf("%s: %s: %v", m.FullName(), path, err)
			}
		})
		if err := enums.Check(mt.New().Interface()); err != nil {
			t.Errorf("an empty %s: %v", m.FullName(), err)
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				count(string(file.Package()), methods.Get(j).Input())
			}
		}
		return true
	})
	count("swarm", (&swarmv1.TaskSpec{}).ProtoReflect().Descriptor())
	t.Logf("enums by package: %v", found)
	for _, protocol := range []string{"runtime.v1", "runtime", "grpc", "docker.swarmkit.v1", "hashicorp.nomad.plugins.drivers.proto", "swarm"} {
		if found[protocol] == 0 {
			t.Errorf("%s: no enum was found, so this test sees no fault", protocol)
		}
	}
}

func TestKnownValuesPass(t *testing.T) {
	req := &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		PortMappings: []*runtimeapi.PortMapping{{Protocol: runtimeapi.Protocol_SCTP}}, Labels: map[string]string{"a": "b"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}}},
	}}
	if err := enums.Check(req); err != nil {
		t.Error(err)
	}
	req.Config.Linux.SecurityContext.Seccomp.ProfileType = 4
	if err := enums.Check(req); err == nil || err.Error() != "config.linux.security_context.seccomp.profile_type: 4 is no ProfileType that this version knows: invalid argument" {
		t.Error(err)
	}
	if err := enums.Check(nil); err != nil {
		t.Error(err)
	}
}
