package oci

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
)

// TestPinnedBinds: a program sees a copy that only root reaches; it goes with the container, also
// when an agent died over it, and takes nothing of the original along, though that is shared and
// has something mounted on it.
func TestPinnedBinds(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		if err := errors.Join(os.MkdirAll(base+"/own/sub", 0o755), os.WriteFile(base+"/own/file", []byte("text"), 0o600), os.Symlink("own", base+"/link")); err != nil {
			t.Fatal(err)
		}
		mount := func(source, target, kind string, flags uintptr) {
			t.Helper()
			if err := unix.Mount(source, target, kind, flags, ""); err != nil {
				t.Fatal(err)
			}
		}
		mount(base, base, "", unix.MS_BIND)
		t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
		mount("", base, "", unix.MS_SHARED)
		mount("tmpfs", base+"/own/sub", "tmpfs", 0)
		if err := os.WriteFile(base+"/own/sub/mounted", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := &Runtime{o: Options{Name: "crun", Root: filepath.Join(t.TempDir(), "crun")}}
		if err := os.Mkdir(r.o.Root, 0o700); err != nil {
			t.Fatal(err)
		}
		spec := &specs.Spec{Mounts: []specs.Mount{
			{Type: "bind", Source: base, Options: []string{"rbind"}},
			{Type: "bind", Source: base + "/own", Options: []string{"rbind", "rprivate", ocispec.BelowOption(base)}},
			{Type: "bind", Source: base + "/own/file", Options: []string{"bind", "rshared", ocispec.BelowOption(base)}},
		}}
		for range 2 {
			with, err := r.copyBinds("c", spec)
			if err != nil {
				t.Fatal(err)
			}
			if with.Mounts[0].Source != base || spec.Mounts[1].Source != base+"/own" || slices.ContainsFunc(with.Mounts[1].Options, ocispec.IsBelowOption) {
				t.Errorf("%+v of %+v", with.Mounts, spec.Mounts)
			}
			for i, name := range map[int]string{1: "/sub/mounted", 2: ""} {
				if src := with.Mounts[i].Source; !strings.HasPrefix(src, r.binds()+"/c/") {
					t.Errorf("mount %d is from %s", i, src)
				} else if _, err := os.Stat(src + name); err != nil {
					t.Error(err)
				}
			}
			if st, err := os.Stat(filepath.Dir(with.Mounts[1].Source)); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("others may look into the copies: %v, %v", st, err)
			}
			// As after an agent's death: the next agent knows of it.
			if ids, err := r.List(t.Context()); err != nil || !slices.Equal(ids, []core.ID{"c"}) {
				t.Errorf("lists %v, %v", ids, err)
			}
			if err := r.Delete(t.Context(), "c", true); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{"/own/file", "/own/sub/mounted"} {
				if _, err := os.Stat(base + f); err != nil {
					t.Errorf("it took something along: %v", err)
				}
			}
			if left, err := os.ReadDir(r.binds()); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		}
		spec.Mounts[2].Source = base + "/link/file"
		if _, err := r.copyBinds("c", spec); !errors.Is(err, unix.ELOOP) {
			t.Errorf("by a link: %v", err)
		}
		if left, err := os.ReadDir(r.binds()); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
}
