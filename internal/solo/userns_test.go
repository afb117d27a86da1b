package solo

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo/translate"
)

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
