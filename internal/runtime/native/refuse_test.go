package native_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/runtime/native"
)

// TestWhatIsNotDoneIsRefusedByName: another runtime takes what is not done, so
// the class decides as much as the name.
func TestWhatIsNotDoneIsRefusedByName(t *testing.T) {
	ids := []specs.LinuxIDMapping{{Size: 1}}
	invalid, notDone := errdefs.IsInvalidArgument, errdefs.IsNotImplemented
	for name, c := range map[string]struct {
		edit  func(*specs.Spec)
		class func(error) bool
	}{
		"linux.uidMappings":             {func(s *specs.Spec) { s.Linux.UIDMappings = ids }, notDone},
		"linux.namespaces[6] (user)":    {func(s *specs.Spec) { add(s, specs.LinuxNamespace{Type: specs.UserNamespace}) }, notDone},
		"linux.namespaces[6] (time)":    {func(s *specs.Spec) { add(s, specs.LinuxNamespace{Type: specs.TimeNamespace}) }, notDone},
		"linux.namespaces[6]: \"pid\"":  {func(s *specs.Spec) { add(s, specs.LinuxNamespace{Type: specs.PIDNamespace}) }, invalid},
		"no mount namespace":            {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:1] }, notDone},
		"hooks.poststop[0].path":        {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "x"}}} }, invalid},
		"hooks.prestart[0].timeout":     {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: "/x", Timeout: new(int)}}} }, invalid}, //nolint:staticcheck // still sent
		"linux.mountLabel":              {func(s *specs.Spec) { s.Linux.MountLabel = "a\"b" }, invalid},
		"linux.intelRdt":                {func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} }, notDone},
		"mounts[0].uidMappings":         {func(s *specs.Spec) { s.Mounts[0].UIDMappings = ids }, notDone},
		"option idmap":                  {func(s *specs.Spec) { s.Mounts[0].Options = []string{"idmap"} }, notDone},
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
		s := spec("true")
		c.edit(s)
		_, err := native.Compile(native.Input{ID: "id", Spec: s, Root: "/nowhere", Host: native.Host{LastCap: 40}})
		if err == nil || !c.class(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func add(s *specs.Spec, ns specs.LinuxNamespace) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, ns)
}
