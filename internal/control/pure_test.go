package control

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

func TestEveryCallIsClassified(t *testing.T) {
	for _, d := range []grpc.ServiceDesc{
		longshorev1.Containers_ServiceDesc, longshorev1.Images_ServiceDesc, longshorev1.Volumes_ServiceDesc, longshorev1.Node_ServiceDesc,
	} {
		var names []string
		for _, m := range d.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range d.Streams {
			names = append(names, m.StreamName)
		}
		for _, n := range names {
			if _, known := reads("/" + d.ServiceName + "/" + n); !known {
				t.Errorf("%s/%s: does it read only?", d.ServiceName, n)
			}
		}
	}
}

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

func TestMadeUpNamesAreValid(t *testing.T) {
	for image, want := range map[string]string{
		"redis": "redis-", "docker.io/library/redis:7@sha256:abc": "redis-", "127.0.0.1:5000/a/b:1": "b-", "@": "container-",
	} {
		if got := madeUpName(image); !strings.HasPrefix(string(got), want) {
			t.Errorf("%s: %s", image, got)
		}
	}
}

func TestIDRangesAreNobodyElses(t *testing.T) {
	var r idRanges
	take := func(sandboxes ...core.Sandbox) (uint32, func()) {
		t.Helper()
		cfg := core.SandboxConfig{}
		release, err := r.take(sandboxes, &cfg)
		if err != nil || len(cfg.UIDs) != 1 || cfg.UIDs[0] != cfg.GIDs[0] || cfg.UIDs[0].Size != idsSize {
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
	whole := core.Sandbox{Config: core.SandboxConfig{UIDs: []specs.LinuxIDMapping{{HostID: firstIDs, Size: idsRanges * idsSize}}}}
	if _, err := r.take([]core.Sandbox{whole}, &core.SandboxConfig{}); !errdefs.IsUnavailable(err) {
		t.Errorf("without a range: %v", err)
	}
}
