package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		if err := os.Remove(record + suffix); err != nil {
			t.Fatal(err)
		}
		if all, err := l.List(t.Context(), ""); err != nil || len(all) != 1 || all[0].Labels["a"] != "b" {
			t.Fatalf("without volume.json%s: %+v, %v", suffix, all, err)
		}
	}
	for _, suffix := range []string{"", ".copy"} {
		if err := os.Truncate(record+suffix, 10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Get(t.Context(), core.OwnerCLI, "data"); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "move "+filepath.Dir(record)+" away") {
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
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"foreign", "cli/foreign"} { // not ours
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := l.List(t.Context(), "")
	if err != nil || len(all) != 2 || all[0].Name != "data" || all[0].Owner != core.OwnerCLI || all[0].Damaged == "" || all[1].Damaged != "" {
		t.Errorf("beside a damaged volume: %+v, %v", all, err)
	}
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "data"}); !errdefs.IsDataLoss(err) {
		t.Errorf("a new one in the place of a damaged one: %v", err)
	}
	if err := l.Remove(t.Context(), core.OwnerCLI, "data"); err != nil {
		t.Errorf("remove a damaged one: %v", err)
	}
	// A removal that was cut short.
	if err := os.Rename(filepath.Join(dir, "cli/other"), filepath.Join(dir, "cli/.removed-other")); err != nil {
		t.Fatal(err)
	}
	if all, err := l.List(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("what is being removed is listed: %+v, %v", all, err)
	}
	if _, err := volume.New(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cli/.removed-other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was being removed is still there: %v", err)
	}
}

// TestSomethingElseInTheRecordsPlace: a directory, a fifo or a link to nowhere is a damaged record, and
// nothing waits for it.
func TestSomethingElseInTheRecordsPlace(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"directory": func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) },
		"fifo":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"loop":      func(p string) error { return os.Symlink(filepath.Base(p), p) },
		"nowhere":   func(p string) error { return os.Symlink("nowhere", p) },
	} {
		for _, both := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "volumes")
			l, err := volume.New(dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "data", Labels: map[string]string{"a": "b"}}); err != nil {
				t.Fatal(err)
			}
			record := filepath.Join(dir, "cli/data/volume.json")
			files := []string{record}
			if both {
				files = append(files, record+".copy")
			}
			for _, f := range files {
				if err := errors.Join(os.Remove(f), make(f)); err != nil {
					t.Fatal(err)
				}
			}
			v, err := l.Get(t.Context(), core.OwnerCLI, "data")
			if name == "nowhere" && both { // it has no record at all, and does not count
				if !errdefs.IsNotFound(err) {
					t.Errorf("%s, of both: %+v, %v", name, v, err)
				}
				continue
			}
			if both != errdefs.IsDataLoss(err) || !both && v.Labels["a"] != "b" {
				t.Errorf("%s, of both %v: %+v, %v", name, both, v, err)
			}
			if !both { // the next damage is of the other one
				if err := errors.Join(os.Remove(record+".copy"), make(record+".copy")); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if v, err := l.Get(t.Context(), core.OwnerCLI, "data"); err != nil || v.Labels["a"] != "b" {
						t.Errorf("%s as the copy: %+v, %v", name, v, err)
					}
				}
				if fi, err := os.Lstat(record + ".copy"); err != nil || !fi.Mode().IsRegular() {
					t.Errorf("%s as the copy stays: %v, %v", name, fi, err)
				}
			}
			repaired, err := volume.Repair(dir, false)
			if err != nil || both != (len(repaired) == 1) {
				t.Errorf("%s, of both %v: repair %+v, %v", name, both, repaired, err)
			}
			if fi, err := os.Lstat(record); err != nil || !fi.Mode().IsRegular() {
				t.Errorf("%s, of both %v: after the repair %v, %v", name, both, fi, err)
			}
			if _, err := l.Get(t.Context(), core.OwnerCLI, "data"); err != nil {
				t.Errorf("%s, of both %v: after the repair %v", name, both, err)
			}
		}
	}
}
