package changes_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/changes"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/state"
)

// objects is a store with a pair "web", and a container "other" of another owner.
func objects(t *testing.T, bundle string, st core.ContainerState) (core.Store, changes.Changes) {
	t.Helper()
	store := state.NewMemory(100)
	t.Cleanup(func() { _ = store.Close() })
	err := store.Update(func(tx core.Tx) error {
		for _, sb := range []core.Sandbox{{Meta: core.Meta{ID: "s", Owner: core.OwnerCLI, Key: "web"}, Pair: true}, {Meta: core.Meta{ID: "t", Owner: core.OwnerCRI, Key: "pod"}}} {
			if err := tx.Sandboxes().Put(sb); err != nil {
				return err
			}
		}
		for _, c := range []core.Container{
			{Meta: core.Meta{ID: "c", Owner: core.OwnerCLI, Key: "web"}, Sandbox: "s", State: st, Bundle: bundle},
			{Meta: core.Meta{ID: "o", Owner: core.OwnerCRI, Key: "other"}, Sandbox: "t", State: core.ContainerRunning},
			{Meta: core.Meta{ID: "d", Owner: core.OwnerCLI, Key: "db"}, Sandbox: "t", State: core.ContainerCreating},
		} {
			if err := tx.Containers().Put(c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return store, changes.Changes{Scope: scope.Scope{
		Records: scope.Records{Store: store}, Owner: core.OwnerCLI, Locks: func(context.Context, core.ID) (func(), error) { return func() {}, nil },
	}}
}

func TestRename(t *testing.T) {
	store, c := objects(t, "", core.ContainerRunning)
	if err := c.Rename(t.Context(), "c", "db"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a name that is in use: %v", err)
	}
	if err := c.Rename(t.Context(), "o", "x"); !errdefs.IsNotFound(err) {
		t.Errorf("another owner's: %v", err)
	}
	if err := c.Rename(t.Context(), "d", "x"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that is being created: %v", err)
	}
	if err := c.Rename(t.Context(), "c", "front"); err != nil {
		t.Fatal(err)
	}
	err := store.View(func(tx core.Tx) error {
		ct, err := tx.Containers().ByKey(core.OwnerCLI, "front")
		if err != nil || ct.ID != "c" || ct.Rev != tx.LastSeq() {
			t.Errorf("the container: %+v, %v", ct.Meta, err)
		}
		if sb, err := tx.Sandboxes().ByKey(core.OwnerCLI, "front"); err != nil || sb.ID != "s" {
			t.Errorf("its sandbox: %v", err)
		}
		if _, err := tx.Containers().ByKey(core.OwnerCLI, "web"); !errdefs.IsNotFound(err) {
			t.Errorf("the old name: %v", err)
		}
		for e, err := range tx.Events(0) {
			if err != nil || e.Kind != core.EventContainerUpdated || e.Key != "front" || e.Note != "renamed, it was web" || e.Seq != 1 {
				t.Errorf("event %+v, %v", e, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Rename(t.Context(), "c", "front"); err != nil {
		t.Errorf("to its own name: %v", err)
	}
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	limit, swap, shares, more := int64(100), int64(300), uint64(5), int64(200)
	raw, err := json.Marshal(specs.Spec{Hostname: "h", Linux: &specs.Linux{Resources: &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &swap}, Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	store, c := objects(t, dir, core.ContainerExited)
	if err := c.Keep(t.Context(), "c", &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &more}, CPU: &specs.LinuxCPU{Shares: &shares, Cpus: "0-1"}}); err != nil {
		t.Fatal(err)
	}
	var got specs.Spec
	if raw, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	r := got.Linux.Resources
	if got.Hostname != "h" || *r.Memory.Limit != 200 || *r.Memory.Swap != 300 || *r.CPU.Shares != 5 || r.CPU.Cpus != "0-1" || len(r.Devices) != 1 {
		t.Errorf("kept: %s", raw)
	}
	if err := store.View(func(tx core.Tx) error {
		if tx.LastSeq() != 1 {
			t.Errorf("%d events, one was to tell of it", tx.LastSeq())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(t.Context(), "o", nil); !errdefs.IsNotFound(err) {
		t.Errorf("another owner's: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(t.Context(), "c", nil); err == nil {
		t.Error("limits are kept without a spec")
	}
}

func TestHealth(t *testing.T) {
	store, c := objects(t, "", core.ContainerRunning)
	began := time.Now().UTC()
	err := store.Update(func(tx core.Tx) error {
		ct, err := tx.Containers().Get("c")
		if err != nil {
			return err
		}
		ct.Main.Started = began
		return tx.Containers().Put(ct)
	})
	if err != nil {
		t.Fatal(err)
	}
	probe := []core.Probe{{Code: 1, Output: strings.Repeat("é", 300)}}
	if err := c.Health(t.Context(), "c", core.Health{Since: began.Add(-time.Second), Status: "healthy"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of an earlier run: %v", err)
	}
	for _, h := range []core.Health{
		{Since: began, Status: "starting", Failures: 1, Probes: probe},
		{Since: began, Status: "unhealthy", Failures: 2, Probes: probe},
		{Since: began, Status: "unhealthy", Failures: 3, Probes: probe},
		{Since: began, Status: "healthy"},
	} {
		if err := c.Health(t.Context(), "c", h); err != nil {
			t.Fatal(err)
		}
	}
	err = store.View(func(tx core.Tx) error {
		ct, err := tx.Containers().Get("c")
		if err != nil || ct.HealthNow() == nil || ct.Health.Status != "healthy" || ct.Rev != 2 {
			t.Errorf("%+v, %v", ct, err)
		}
		var notes []string
		for e, err := range tx.Events(0) {
			if err != nil || e.Kind != core.EventContainerHealth || e.Container != "c" || e.Key != "web" {
				t.Errorf("event %+v, %v", e, err)
			}
			notes = append(notes, e.Note)
		}
		if want := []string{"unhealthy: " + strings.Repeat("é", 200), "healthy"}; !slices.Equal(notes, want) {
			t.Errorf("%q", notes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Health(t.Context(), "d", core.Health{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that is being created: %v", err)
	}
}
