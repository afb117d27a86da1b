package compile_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
)

// TestWhatIsNotDoneIsRefusedByName: another runtime takes an unsupported spec, so the class decides
// as much as the name.
func TestWhatIsNotDoneIsRefusedByName(t *testing.T) {
	ids := []specs.LinuxIDMapping{{Size: 1}}
	invalid, notDone := errdefs.IsInvalidArgument, errdefs.IsNotImplemented
	for name, c := range map[string]struct {
		edit  func(*specs.Spec)
		class func(error) bool
	}{
		"hooks.poststop[0].path":     {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "x"}}} }, invalid},
		"hooks.prestart[0].timeout":  {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: "/x", Timeout: new(int)}}} }, invalid}, //nolint:staticcheck // still sent
		"linux.uidMappings: without": {func(s *specs.Spec) { s.Linux.UIDMappings = ids }, invalid},
		"linux.uidMappings: plan":    {func(s *specs.Spec) { nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.UserNamespace}) }, invalid},
		"linux.uidMappings: root": {func(s *specs.Spec) {
			nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 1, HostID: 5, Size: 9}}
			s.Linux.GIDMappings = s.Linux.UIDMappings
		}, invalid},
		"linux.gidMappings: plan": {func(s *specs.Spec) {
			nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = ids
			s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: 7, Size: 9}, {ContainerID: 8, HostID: 100, Size: 9}}
		}, invalid},
		"linux.timeOffsets: without": {func(s *specs.Spec) { s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1}} }, invalid},
		"linux.timeOffsets: clock": {func(s *specs.Spec) {
			nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.TimeNamespace})
			s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"realtime": {Secs: 1}}
		}, invalid},
		"linux.namespaces[6]: \"pid\"":   {func(s *specs.Spec) { nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.PIDNamespace}) }, invalid},
		"no mount namespace":             {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:1] }, notDone},
		"linux.mountLabel":               {func(s *specs.Spec) { s.Linux.MountLabel = "a\"b" }, invalid},
		"linux.intelRdt":                 {func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} }, notDone},
		"mounts[0] (/proc): uidMappings": {func(s *specs.Spec) { s.Mounts[0].UIDMappings = ids }, invalid},
		"option idmap": {func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/", Options: []string{"idmap"}})
		}, invalid},
		"process.args":                  {func(s *specs.Spec) { s.Process.Args = nil }, invalid},
		"process.cwd":                   {func(s *specs.Spec) { s.Process.Cwd = "x" }, invalid},
		"NUL":                           {func(s *specs.Spec) { s.Process.Env = []string{"A=\x00"} }, invalid},
		"process.rlimits[0]":            {func(s *specs.Spec) { s.Process.Rlimits[0].Type = "RLIMIT_X" }, invalid},
		"process.capabilities.bounding": {func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_X"} }, invalid},
		"kernel.core_pattern":           {func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.core_pattern": "x"} }, invalid},
		"additionalGids":                {func(s *specs.Spec) { s.Process.User.AdditionalGids = make([]uint32, 65537) }, invalid},
		"linux.devices[0]": {func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/", Type: "c"}}
		}, invalid},
		"hostname": {func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
		}, invalid},
	} {
		s := nativetest.Spec("true")
		c.edit(s)
		_, err := compile.Container(compile.Input{ID: "id", Spec: s, Root: "/nowhere", Host: compile.Host{LastCap: 40}})
		if err == nil || !c.class(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
