package control

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/control/translate"
	"github.com/longshore/longshore/internal/core"
)

func TestPickPrefersTheBestMatch(t *testing.T) {
	objects := []object{
		{Meta: core.Meta{ID: "aaaa1", Owner: core.OwnerCLI, Key: "web"}},
		{Meta: core.Meta{ID: "aaaa2", Owner: core.OwnerCRI, Key: "web"}},
		{Meta: core.Meta{ID: "bbbb1", Owner: core.OwnerCRI, Key: "db"}},
		{Meta: core.Meta{ID: "web99", Owner: core.OwnerNomad, Key: "job"}},
		{Meta: core.Meta{ID: "cccc1", Owner: core.OwnerCRI, Key: "two"}},
		{Meta: core.Meta{ID: "cccc2", Owner: core.OwnerNomad, Key: "two"}},
		{core.Meta{ID: "dddd1", Owner: core.OwnerSwarm, Key: "task"}, "web.1.task"},
	}
	for name, want := range map[string]int{"web": 0, "aaaa2": 1, "db": 2, "bbb": 2, "web9": 3, "task": 6, "web.1.task": 6, "web.1": -1, "none": -1} {
		if got, err := pick(name, objects); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"two", "aaaa", ""} {
		if got, err := pick(name, objects); err == nil {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func TestIDRangesAreNotShared(t *testing.T) {
	var r idRanges
	take := func(sandboxes ...core.Sandbox) (uint32, func()) {
		t.Helper()
		cfg := core.SandboxConfig{}
		release, err := r.take(sandboxes, &cfg)
		if err != nil || len(cfg.UIDs) != 1 || cfg.UIDs[0] != cfg.GIDs[0] || cfg.UIDs[0].Size != translate.UserIDs {
			t.Fatalf("%+v, %v", cfg, err)
		}
		return cfg.UIDs[0].HostID, release
	}
	a, release := take()
	b, _ := take()
	if a == b {
		t.Errorf("two containers have %d", a)
	}
	release()
	across := core.Sandbox{Config: core.SandboxConfig{GIDs: []specs.LinuxIDMapping{{HostID: a + 5, Size: 1}}}} // of another owner
	if c, _ := take(across); c == a || c == b {
		t.Errorf("%d is taken", c)
	}
	if d, _ := take(); d != a {
		t.Errorf("%d, and %d is free", d, a)
	}
	whole := core.Sandbox{Config: core.SandboxConfig{UIDs: []specs.LinuxIDMapping{{HostID: firstIDs, Size: idsRanges * translate.UserIDs}}}}
	if _, err := r.take([]core.Sandbox{whole}, &core.SandboxConfig{}); !errdefs.IsUnavailable(err) {
		t.Errorf("without a range: %v", err)
	}
}
