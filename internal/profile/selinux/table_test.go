package selinux

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
)

func on() bool { return true }

// taken returns a sandbox's configuration after Take, in a store that has the sandboxes.
func taken(t *testing.T, table Table, cfg core.SandboxConfig, f core.RuntimeFeatures, has ...core.Sandbox) (core.SandboxConfig, error) {
	t.Helper()
	s := state.NewMemory(10)
	return cfg, s.Update(func(tx core.Tx) error {
		for _, sb := range has {
			if err := tx.Sandboxes().Put(sb); err != nil {
				t.Fatal(err)
			}
		}
		return table.Take(tx, &cfg, f)
	})
}

func sandbox(id core.ID, label string) core.Sandbox {
	return core.Sandbox{Meta: core.Meta{ID: id, Owner: "cli", Key: core.Key(id)}, Config: core.SandboxConfig{FileLabel: label}}
}

func TestTake(t *testing.T) {
	const files = "system_u:object_r:container_file_t:"
	joins := core.SandboxConfig{SELinux: &core.SELinux{}, Namespaces: core.Namespaces{IPC: core.Namespace{Mode: core.Joined, Holder: "h"}}}
	both := joins
	both.Namespaces.PID = core.Namespace{Mode: core.Joined, Holder: "other"}
	asks := func(a core.SELinux) core.SandboxConfig { return core.SandboxConfig{SELinux: &a} }
	has := []core.Sandbox{sandbox("h", files+"s0:c7,c8"), sandbox("other", files+"s0:c9,c10"), sandbox("none", "")}
	unlabelled := joins
	unlabelled.Namespaces.IPC.Holder = "none"
	for name, c := range map[string]struct {
		table Table
		cfg   core.SandboxConfig
		want  string // the beginning of the label
		pair  bool   // and a pair of categories
	}{
		"not asked":              {Table{All: true, Enabled: on}, core.SandboxConfig{}, "", false},
		"all":                    {Table{All: true, Enabled: on}, asks(core.SELinux{}), files + "s0:c", true},
		"not all":                {Table{Enabled: on}, asks(core.SELinux{}), "", false},
		"always":                 {Table{Enabled: on}, asks(core.SELinux{Always: true}), files + "s0:c", true},
		"a type":                 {Table{Enabled: on}, asks(core.SELinux{Type: "x_t"}), files + "s0:c", true},
		"a level":                {Table{Enabled: on}, asks(core.SELinux{Level: "s0:c1"}), files + "s0:c1", false},
		"a file type and a user": {Table{Enabled: on}, asks(core.SELinux{FileType: "f_t", User: "u"}), "u:object_r:f_t:s0:c", true},
		"off":                    {Table{All: true, Enabled: func() bool { return false }}, asks(core.SELinux{Type: "x_t"}), "", false},
		"a joined namespace":     {Table{All: true, Enabled: on}, joins, files + "s0:c7,c8", false},
		"a namespace without":    {Table{All: true, Enabled: on}, unlabelled, "", false},
	} {
		cfg, err := taken(t, c.table, c.cfg, core.RuntimeFeatures{}, has...)
		if err != nil || !strings.HasPrefix(cfg.FileLabel, c.want) || c.want == "" && cfg.FileLabel != "" || c.pair && strings.Count(cfg.FileLabel, ",") != 1 || !c.pair && cfg.FileLabel != c.want {
			t.Errorf("%s: %q, %v", name, cfg.FileLabel, err)
		}
	}
	if _, err := taken(t, Table{All: true, Enabled: on}, both, core.RuntimeFeatures{}, has...); !errdefs.IsInvalidArgument(err) {
		t.Errorf("namespaces of two labels: %v", err)
	}
	if _, err := taken(t, Table{All: true, Enabled: on}, asks(core.SELinux{}), core.RuntimeFeatures{Path: "/usr/bin/crun"}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "only the runtime native") {
		t.Errorf("another runtime: %v", err)
	}
	if _, err := taken(t, Table{Enabled: on}, asks(core.SELinux{FileType: "a:b"}), core.RuntimeFeatures{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file type with a colon: %v", err)
	}
}

// TestChosenLevelsAreFree: no sandbox has the level of another one, and all can be in use.
func TestChosenLevelsAreFree(t *testing.T) {
	used := map[string]bool{}
	for range 2000 {
		level, err := choose(used)
		if err != nil || used[level] {
			t.Fatalf("%s: in use %v, %v", level, used[level], err)
		}
		used[level] = true
	}
	for a := range categories {
		for b := range categories - 1 {
			used[pair(a, b)] = true
		}
	}
	if level, err := choose(used); !errdefs.IsUnavailable(err) {
		t.Errorf("%q, %v", level, err)
	}
}

func TestTakeAsksTheRecords(t *testing.T) {
	var has []core.Sandbox
	for i := range 50 {
		cfg, err := taken(t, Table{All: true, Enabled: on}, core.SandboxConfig{SELinux: &core.SELinux{}}, core.RuntimeFeatures{}, has...)
		if err != nil {
			t.Fatal(err)
		}
		has = append(has, sandbox(core.ID(fmt.Sprint(i)), cfg.FileLabel))
	}
	s := state.NewMemory(10)
	if err := s.Update(func(tx core.Tx) error {
		for _, sb := range has {
			if err := tx.Sandboxes().Put(sb); err != nil {
				return err
			}
		}
		for range 1000 {
			level, err := free(tx)
			for _, sb := range has {
				if err != nil || LevelOf(sb.Config.FileLabel) == level {
					return fmt.Errorf("%s is in use by %s: %w", level, sb.ID, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestLabel(t *testing.T) {
	const files = "system_u:object_r:container_file_t:s0:c1,c2"
	for name, c := range map[string]struct {
		table         Table
		ask           *core.SELinux
		has           string // the container's file label
		process, file string
	}{
		"none":           {Table{Enabled: on}, nil, "", "", ""},
		"the node's":     {Table{Enabled: on}, &core.SELinux{}, files, "system_u:system_r:container_t:s0:c1,c2", files},
		"a type":         {Table{Enabled: on}, &core.SELinux{Type: "x_t", Role: "r"}, files, "system_u:r:x_t:s0:c1,c2", files},
		"not labelled":   {Table{Enabled: on}, &core.SELinux{}, "", "", ""},
		"an own root":    {Table{Enabled: on}, &core.SELinux{Type: "x_t"}, "", "", ""},
		"off":            {Table{Enabled: func() bool { return false }}, &core.SELinux{}, "", "", ""},
		"off and a type": {Table{Enabled: func() bool { return false }}, &core.SELinux{Type: "x_t"}, "", "system_u:system_r:x_t:s0", "system_u:object_r:container_file_t:s0"},
	} {
		s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		err := c.table.Label(&core.SandboxConfig{SELinux: c.ask}, &core.ContainerConfig{FileLabel: c.has}, s, nil)
		if err != nil || s.Process.SelinuxLabel != c.process || s.Linux.MountLabel != c.file {
			t.Errorf("%s: %q, %q, %v", name, s.Process.SelinuxLabel, s.Linux.MountLabel, err)
		}
	}
	s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	err := Table{Enabled: on}.Label(&core.SandboxConfig{SELinux: &core.SELinux{}}, &core.ContainerConfig{FileLabel: files}, s, []core.Relabel{{Path: "/usr"}})
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "/usr") {
		t.Errorf("relabel of /usr: %v", err)
	}
}

func TestDirectoriesOfTheNodeKeepTheirLabels(t *testing.T) {
	for _, dir := range []string{"/", "/usr", "/etc", "/home", "/var/lib", "/usr/", "/etc/../usr", "/proc/self", "/sys/kernel", "/dev/shm", "/bin"} {
		if err := Relabel(dir, "system_u:object_r:container_file_t:s0"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "leave out z and Z") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := Relabel("/absent/file", "x"); err == nil {
		t.Error("a missing file has a label")
	}
}
