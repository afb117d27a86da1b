package kata

import (
	"testing"

	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// FuzzSpec: no configuration that a shim may send harms the agent, and an accepted one has a
// process and a root.
func FuzzSpec(f *testing.F) {
	seed, err := proto.Marshal(&katav1.Spec{
		Root: &katav1.Root{Path: "/r"}, Process: &katav1.Process{Args: []string{"a"}, OOMScoreAdj: 5, Rlimits: []*katav1.POSIXRlimit{{Type: "RLIMIT_CORE"}}},
		Linux: &katav1.Linux{
			Namespaces: []*katav1.LinuxNamespace{{Type: "ipc"}}, Devices: []*katav1.LinuxDevice{{Path: "/dev/x", Type: "c"}},
			Resources: &katav1.LinuxResources{BlockIO: &katav1.LinuxBlockIO{Weight: 1 << 20}}, Seccomp: &katav1.LinuxSeccomp{Syscalls: []*katav1.LinuxSyscall{{Names: []string{"read"}}}},
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		var in katav1.Spec
		if proto.Unmarshal(b, &in) != nil {
			return
		}
		s, err := toSpec(&in)
		if err == nil && (s.Process == nil || len(s.Process.Args) == 0 || s.Root.Path == "" || s.Linux == nil) {
			t.Errorf("taken: %+v", s)
		}
	})
}
