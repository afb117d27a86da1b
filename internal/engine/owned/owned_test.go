package owned_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
)

// ids is a mapping of a user namespace.
var ids = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}

// pod is a sandbox that shares all but the cgroup namespace.
func pod() *core.Sandbox {
	shared := func(kind string) core.Namespace {
		return core.Namespace{Mode: core.Shared, Path: "/run/ns/" + kind}
	}
	sb := &core.Sandbox{Dir: "/run/sandbox"}
	sb.Config.Hostname, sb.Config.Domainname = "pod", "example.org"
	sb.Config.Namespaces = core.Namespaces{
		Net: shared("net"), IPC: shared("ipc"), UTS: shared("uts"), PID: shared("pid"), User: core.Namespace{Mode: core.Host}, Cgroup: core.Namespace{Mode: core.PerContainer},
	}
	return sb
}

// namespaces returns those of a spec as "type" or "type=path", sorted.
func namespaces(s *specs.Spec) string {
	var list []string
	for _, n := range s.Linux.Namespaces {
		text := string(n.Type)
		if n.Path != "" {
			text += "=" + n.Path
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestNamespacesFollowTheSandboxTheSiblingAndTheContainer(t *testing.T) {
	all := func(mode core.NamespaceMode) func(*core.Sandbox) {
		return func(sb *core.Sandbox) {
			n := core.Namespace{Mode: mode}
			sb.Config.Namespaces = core.Namespaces{Net: n, IPC: n, UTS: n, PID: n, User: n, Cgroup: n}
		}
	}
	for name, c := range map[string]struct {
		sandbox func(*core.Sandbox)
		config  core.ContainerConfig
		join    map[specs.LinuxNamespaceType]string
		want    string
		mapped  bool
	}{
		"in the host's cgroups": {config: core.ContainerConfig{HostCgroups: true}, want: "ipc=/run/ns/ipc mount network=/run/ns/net pid=/run/ns/pid uts=/run/ns/uts"},
		"shared":                {want: "cgroup ipc=/run/ns/ipc mount network=/run/ns/net pid=/run/ns/pid uts=/run/ns/uts"},
		"of a sibling": {
			join: map[specs.LinuxNamespaceType]string{specs.PIDNamespace: "/proc/7/ns/pid"},
			want: "cgroup ipc=/run/ns/ipc mount network=/run/ns/net pid=/proc/7/ns/pid uts=/run/ns/uts",
		},
		"its own": {
			config: core.ContainerConfig{Own: []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace}},
			want:   "cgroup ipc mount network pid=/run/ns/pid uts=/run/ns/uts",
		},
		"the host's": {sandbox: all(core.Host), want: "mount"},
		"one per container": {
			sandbox: func(sb *core.Sandbox) { all(core.PerContainer)(sb); sb.Config.UIDs, sb.Config.GIDs = ids, ids },
			want:    "cgroup ipc mount network pid user uts", mapped: true,
		},
		"a user namespace without mappings": {sandbox: all(core.PerContainer), want: "cgroup ipc mount network pid uts"},
		"a shared user namespace": {
			sandbox: func(sb *core.Sandbox) {
				sb.Config.Namespaces.User = core.Namespace{Mode: core.Shared, Path: "/run/ns/user"}
				sb.Config.UIDs, sb.Config.GIDs = ids, ids
			},
			want: "cgroup ipc=/run/ns/ipc mount network=/run/ns/net pid=/run/ns/pid user=/run/ns/user uts=/run/ns/uts", mapped: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			sb := pod()
			if c.sandbox != nil {
				c.sandbox(sb)
			}
			// Apply drops the face's own namespaces.
			s := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/evil"}, {Type: specs.UserNamespace}}, UIDMappings: ids}}
			owned.Apply(s, owned.Spec{Sandbox: sb, Config: &c.config, Join: c.join})
			if got := namespaces(s); got != c.want {
				t.Errorf("namespaces %s\n      not %s", got, c.want)
			}
			if mapped := len(s.Linux.UIDMappings) > 0 && len(s.Linux.GIDMappings) > 0; mapped != c.mapped {
				t.Errorf("mappings %v and %v", s.Linux.UIDMappings, s.Linux.GIDMappings)
			}
		})
	}
}

func TestATimeNamespaceStaysAsTheSpecHasIt(t *testing.T) {
	s := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.TimeNamespace, Path: "/time"}}}}
	owned.Apply(s, owned.Spec{Sandbox: pod(), Config: &core.ContainerConfig{}})
	if got := namespaces(s); !strings.Contains(got, "time=/time") {
		t.Error(got)
	}
}

func TestAHostnameNeedsAUTSNamespaceOfTheContainersOwn(t *testing.T) {
	for name, c := range map[string]struct {
		config core.ContainerConfig
		join   map[specs.LinuxNamespaceType]string
		has    string
		want   string
	}{
		"shared":                  {has: "mine"},
		"own":                     {config: core.ContainerConfig{Own: []specs.LinuxNamespaceType{specs.UTSNamespace}}, want: "pod.example.org"},
		"own, named by the spec":  {config: core.ContainerConfig{Own: []specs.LinuxNamespaceType{specs.UTSNamespace}}, has: "mine", want: "mine.example.org"},
		"joined to a sibling's":   {join: map[specs.LinuxNamespaceType]string{specs.UTSNamespace: "/proc/7/ns/uts"}, has: "mine"},
		"joined, and its own too": {config: core.ContainerConfig{Own: []specs.LinuxNamespaceType{specs.UTSNamespace}}, join: map[specs.LinuxNamespaceType]string{specs.UTSNamespace: "/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &specs.Spec{Hostname: c.has}
			owned.Apply(s, owned.Spec{Sandbox: pod(), Config: &c.config, Join: c.join})
			got := s.Hostname
			if s.Domainname != "" {
				got += "." + s.Domainname
			}
			if got != c.want {
				t.Errorf("%q, not %q", got, c.want)
			}
		})
	}
}

// at returns the mount at a destination.
func at(t *testing.T, s *specs.Spec, dest string) specs.Mount {
	t.Helper()
	var found []specs.Mount
	for _, m := range s.Mounts {
		if m.Destination == dest {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d mounts at %s: %v", len(found), dest, found)
	}
	return found[0]
}

func TestMountsOfTheSandboxAndVolumes(t *testing.T) {
	config := core.ContainerConfig{Init: true}
	s := &specs.Spec{
		Process: &specs.Process{Args: []string{"sleep", "1"}},
		Mounts: []specs.Mount{
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"},
			{Destination: "/data/", Type: "tmpfs"},
		},
	}
	owned.Apply(s, owned.Spec{
		Sandbox: pod(), Config: &config, Version: "1.2.3", Init: "/usr/bin/init", Files: []string{"hosts"}, Etc: "/run/sandbox/etc",
		Volumes: []specs.Mount{{Destination: "/data", Type: "bind", Source: "/volumes/data"}}, Cgroup: core.CgroupRef{Path: "/pods/1"},
	})
	if m := at(t, s, "/etc/hosts"); m.Source != "/run/sandbox/etc/hosts" || !slices.Contains(m.Options, "ro") {
		t.Errorf("%v", m)
	}
	if m := at(t, s, "/dev/shm"); m.Source != "/run/sandbox/shm" || m.Type != "bind" {
		t.Errorf("the sandbox's shared memory: %v", m)
	}
	if m := at(t, s, "/data"); m.Source != "/volumes/data" {
		t.Errorf("the volume: %v", m)
	}
	if owned.MountTaken(slices.DeleteFunc(slices.Clone(s.Mounts), func(m specs.Mount) bool { return m.Source == "/volumes/data" }), "/data") {
		t.Error("the spec's own mount at the volume's place is kept")
	}
	if got := strings.Join(s.Process.Args, " "); got != "/dev/.init init sleep 1" {
		t.Errorf("arguments %q", got)
	}
	if m := at(t, s, "/dev/.init"); m.Source != "/usr/bin/init" {
		t.Errorf("the init: %v", m)
	}
	if s.Version != "1.2.3" || s.Linux.CgroupsPath != "/pods/1" || s.Root.Path != "rootfs" || s.Root.Readonly {
		t.Errorf("%s, cgroup %s, root %v", s.Version, s.Linux.CgroupsPath, s.Root)
	}
}

func TestAMountOfTheCallersAtShmStays(t *testing.T) {
	s := &specs.Spec{Mounts: []specs.Mount{{Destination: "/dev/shm", Type: "bind", Source: "/mine"}}}
	owned.Apply(s, owned.Spec{Sandbox: pod(), Config: &core.ContainerConfig{}})
	if m := at(t, s, "/dev/shm"); m.Source != "/mine" {
		t.Errorf("%v", m)
	}
}

func TestCheckNamesNamespacesThatAContainerCannotOwn(t *testing.T) {
	for name, c := range map[string]struct {
		own  []specs.LinuxNamespaceType
		join []core.Join
		ok   bool
	}{
		"none":          {ok: true},
		"network":       {own: []specs.LinuxNamespaceType{specs.NetworkNamespace}, ok: true},
		"user":          {own: []specs.LinuxNamespaceType{specs.UserNamespace}},
		"mount":         {own: []specs.LinuxNamespaceType{specs.MountNamespace}},
		"twice":         {own: []specs.LinuxNamespaceType{specs.PIDNamespace, specs.PIDNamespace}},
		"joined as own": {own: []specs.LinuxNamespaceType{specs.PIDNamespace}, join: []core.Join{{Namespace: specs.PIDNamespace}}},
	} {
		t.Run(name, func(t *testing.T) {
			err := owned.Check(c.own, c.join)
			if (err == nil) != c.ok || err != nil && !errdefs.IsInvalidArgument(err) {
				t.Error(err)
			}
		})
	}
}

func TestASandboxIsReleasedWithItsLastNamespaceAndInit(t *testing.T) {
	sb := pod()
	if owned.Released(sb) {
		t.Error("it has namespaces")
	}
	for _, n := range owned.Pinned(&sb.Config.Namespaces) {
		n.Path = ""
	}
	if !owned.Released(sb) {
		t.Errorf("it has none: %+v", sb.Config.Namespaces)
	}
	sb.Init = 7
	if owned.Released(sb) {
		t.Error("its init lives")
	}
	sb.Init, sb.Renewing = 0, true
	if owned.Released(sb) {
		t.Error("it gets them again")
	}
}

func TestTheInitOfASandboxJoinsItsNamespacesAndHoldsThePids(t *testing.T) {
	sb := pod()
	sb.Config.Namespaces.User, sb.Config.UIDs, sb.Config.GIDs = core.Namespace{Mode: core.Shared, Path: "/run/ns/user"}, ids, ids
	s := owned.Init(sb, "/usr/bin/init", "1.2.3", core.CgroupRef{Path: "/pods/1"})
	if got, want := namespaces(s), "ipc=/run/ns/ipc mount network=/run/ns/net pid user=/run/ns/user uts=/run/ns/uts"; got != want {
		t.Errorf("namespaces %s\n      not %s", got, want)
	}
	if !s.Process.NoNewPrivileges || s.Process.Capabilities == nil || len(s.Process.Capabilities.Bounding) > 0 || !s.Root.Readonly {
		t.Errorf("process %+v, root %v", s.Process, s.Root)
	}
	if len(s.Linux.UIDMappings) == 0 || len(s.Linux.GIDMappings) == 0 {
		t.Error("it has no mappings for the namespace that it joins")
	}
}

// TestLabelled: a bind mount has the labels of its source.
func TestLabelled(t *testing.T) {
	mounts := []core.Mount{{Type: "overlay", Options: make([]string, 1, 2)}, {Type: "bind"}, {Type: "tmpfs", Options: []string{"mode=1777"}}}
	got := owned.Labelled(mounts, "u:r:t:s0:c1,c2")
	for i, want := range [][]string{{"", "context=u:r:t:s0:c1,c2"}, nil, {"mode=1777", "context=u:r:t:s0:c1,c2"}} {
		if !slices.Equal(got[i].Options, want) {
			t.Errorf("options %q, want %q", got[i].Options, want)
		}
	}
	if len(mounts[0].Options) != 1 || mounts[0].Options[:2][1] != "" || len(owned.Labelled(mounts, "")[2].Options) != 1 {
		t.Errorf("the caller's mounts were changed: %v", mounts)
	}
}
