package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/volume"
)

func TestVolumesArePerOwner(t *testing.T) {
	l, err := volume.New(filepath.Join(t.TempDir(), "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, owner := range []core.Owner{core.OwnerCLI, core.OwnerNomad} {
		v, err := l.Create(ctx, owner, core.VolumeConfig{Name: "data", Labels: map[string]string{"a": "b"}})
		if err != nil || v.Owner != owner || v.Filled {
			t.Fatalf("%+v, %v", v, err)
		}
		if err := os.WriteFile(filepath.Join(v.Path, "f"), []byte(owner), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, err := l.Create(ctx, core.OwnerCLI, core.VolumeConfig{Name: "data"})
	if !errdefs.IsAlreadyExists(err) || first.Labels["a"] != "b" {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := l.Filled(ctx, core.OwnerCLI, "data"); err != nil {
		t.Fatal(err)
	}
	if v, err := l.Get(ctx, core.OwnerCLI, "data"); err != nil || !v.Filled {
		t.Fatalf("%+v, %v", v, err)
	}
	if err := l.Remove(ctx, core.OwnerCLI, "data"); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, core.OwnerCLI, "data"); !errdefs.IsNotFound(err) {
		t.Fatalf("second remove: %v", err)
	}
	all, err := l.List(ctx, "")
	if err != nil || len(all) != 1 || all[0].Owner != core.OwnerNomad {
		t.Fatalf("%+v, %v", all, err)
	}
	if b, err := os.ReadFile(filepath.Join(all[0].Path, "f")); err != nil || string(b) != "nomad" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestNamesCannotLeaveTheDirectory(t *testing.T) {
	l, err := volume.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", "-a", "a\x00b", "a b"} {
		if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: name}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := l.Create(t.Context(), "../x", core.VolumeConfig{Name: "a"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("owner: %v", err)
	}
}

func TestAHalfMadeVolumeIsNone(t *testing.T) {
	dir := t.TempDir()
	l, err := volume.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "cli/half/_data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), core.OwnerCLI, "half"); !errdefs.IsNotFound(err) {
		t.Fatalf("err = %v", err)
	}
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "half"}); err != nil {
		t.Fatal(err)
	}
}

// TestADamagedRecordIsMended: the record or its copy is damaged; the other has all.
func TestADamagedRecordIsMended(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	l, err := volume.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "data", Labels: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Filled(t.Context(), core.OwnerCLI, "data"); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "cli/data/volume.json")
	whole, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", ".copy", "", ".copy"} {
		for name, body := range map[string]string{"empty": "", "cut": string(whole[:len(whole)/2]), "another": strings.Replace(string(whole), `"a":"b"`, `"a":"c"`, 1)} {
			if err := os.WriteFile(record+suffix, []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				all, err := l.List(t.Context(), "")
				if err != nil || len(all) != 1 || all[0].Labels["a"] != "b" || !all[0].Filled {
					t.Fatalf("volume.json%s %s: %+v, %v", suffix, name, all, err)
				}
			}
		}
	}
	for _, suffix := range []string{"", ".copy"} {
		if err := os.Truncate(record+suffix, 10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Get(t.Context(), core.OwnerCLI, "data"); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "longshore repair") {
		t.Errorf("both are damaged: %v", err)
	}
	for _, dry := range []bool{true, false} {
		all, err := volume.Repair(dir, dry)
		if err != nil || len(all) != 1 || !all[0].Made || all[0].Dir != filepath.Dir(record) {
			t.Fatalf("repair: %+v, %v", all, err)
		}
		v, err := l.Get(t.Context(), core.OwnerCLI, "data")
		if dry != (err != nil) || !dry && (v.Name != "data" || v.Owner != core.OwnerCLI || !v.Filled || v.Path != filepath.Join(filepath.Dir(record), "_data")) {
			t.Errorf("after a repair, dry %v: %+v, %v", dry, v, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(record), "_data")); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", ".copy"} {
		if err := os.WriteFile(record+suffix, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Where its content is, only the record said.
	if all, err := volume.Repair(dir, false); err != nil || len(all) != 1 || all[0].Made {
		t.Errorf("repair without content: %+v, %v", all, err)
	}
}
