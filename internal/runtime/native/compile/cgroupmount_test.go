package compile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// TestCgroupMountsOnV2: the kernel refuses the same tree twice in one place, so
// that a second mount there only changes the first one's flags.
func TestCgroupMountsOnV2(t *testing.T) {
	cgroups := func(options ...string) specs.Mount {
		return specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: options}
	}
	sysfs := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"}
	const mount, change = "mount cgroup2 on /sys/fs/cgroup", "attributes of /sys/fs/cgroup"
	for name, c := range map[string]struct {
		mounts  []specs.Mount
		private bool
		want    []string
	}{
		"one":                {[]specs.Mount{sysfs, cgroups("ro")}, true, []string{mount}},
		"the host's":         {[]specs.Mount{sysfs, cgroups("ro")}, false, []string{mount}},
		"two":                {[]specs.Mount{sysfs, cgroups("ro"), cgroups("rw", "nosuid")}, true, []string{mount, change}},
		"two of the host's":  {[]specs.Mount{sysfs, cgroups("ro"), cgroups("ro")}, false, []string{mount, change}},
		"one under another":  {[]specs.Mount{sysfs, cgroups("ro"), sysfs, cgroups("ro")}, true, []string{mount, mount}},
		"beside one another": {[]specs.Mount{sysfs, cgroups("ro"), {Destination: "/sys/fs", Type: "tmpfs"}, cgroups("ro")}, true, []string{mount, mount}},
	} {
		t.Run(name, func(t *testing.T) {
			s := nativetest.Spec("true")
			s.Mounts = c.mounts
			if !c.private {
				s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
			}
			out, err := compile.Container(compile.Input{ID: "id", Spec: s, Root: fuzzRoot, Cgroup: compile.Cgroup{Unified: "/sys/fs/cgroup/x"}})
			if err != nil {
				t.Fatal(err)
			}
			text, err := plan.Print(out.Plan)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(text) {
				for _, w := range []string{mount, change} {
					if strings.Contains(line, w) {
						got = append(got, w)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q, in\n%s", got, c.want, text)
			}
		})
	}
}

// TestADelegatedCgroupIsWritable: on v2 the tree is, on v1 only systemd's hierarchy, and without a namespace there is none.
func TestADelegatedCgroupIsWritable(t *testing.T) {
	v1 := []compile.Hierarchy{{Name: "memory", Options: "memory"}, {Name: "systemd", Options: "none,name=systemd"}}
	for _, c := range []struct {
		hierarchies []compile.Hierarchy
		delegated   bool
		want        map[string]bool // by place: whether the mount is writable
	}{
		{nil, false, map[string]bool{"cgroup2 on /sys/fs/cgroup": false}},
		{nil, true, map[string]bool{"cgroup2 on /sys/fs/cgroup": true}},
		{v1, false, map[string]bool{"cgroup on /sys/fs/cgroup/memory": false, "cgroup on /sys/fs/cgroup/systemd": false}},
		{v1, true, map[string]bool{"cgroup on /sys/fs/cgroup/memory": false, "cgroup on /sys/fs/cgroup/systemd": true}},
	} {
		s := nativetest.Spec("true")
		s.Mounts = []specs.Mount{{Destination: "/sys", Type: "sysfs"}, {Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}}}
		in := compile.Input{ID: "id", Spec: s, Root: fuzzRoot, Host: compile.Host{Hierarchies: c.hierarchies}, Cgroup: compile.Cgroup{Delegated: c.delegated}}
		out, err := compile.Container(in)
		if err != nil {
			t.Fatal(err)
		}
		all, err := plan.Steps(out.Plan)
		if err != nil {
			t.Fatal(err)
		}
		for place, writable := range c.want {
			if _, step := titled(t, all, "mount "+place); (step.A[3]&unix.MS_RDONLY == 0) != writable {
				t.Errorf("delegated %v, %s: flags %#x", c.delegated, place, step.A[3])
			}
		}
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
		if out, err = compile.Container(in); err != nil {
			t.Fatal(err)
		}
		if all, err = plan.Steps(out.Plan); err != nil {
			t.Fatal(err)
		}
		for _, step := range all {
			if strings.HasPrefix(step.Title, "mount cgroup") && step.A[3]&unix.MS_RDONLY == 0 {
				t.Errorf("delegated %v, without a cgroup namespace: %s is writable", c.delegated, step.Title)
			}
		}
	}
}

// TestAMountOfTheHostsCgroupsKeepsTheirOptions shows that a container in the host's cgroup namespace mounts the v2 tree with
// the host's options, because these belong to the tree and not to a mount.
func TestAMountOfTheHostsCgroupsKeepsTheirOptions(t *testing.T) {
	for _, private := range []bool{true, false} {
		s := nativetest.Spec("true")
		s.Mounts = []specs.Mount{{Destination: "/sys", Type: "sysfs"}, {Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}}}
		if !private {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
		}
		out, err := compile.Container(compile.Input{ID: "id", Spec: s, Root: fuzzRoot, Host: compile.Host{Unified: "nsdelegate,memory_recursiveprot"}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := plan.Print(out.Plan)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, "nsdelegate,memory_recursiveprot"); got == private {
			t.Errorf("private %v: the options are in the plan: %v\n%s", private, got, text)
		}
	}
}
