package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/roottest"
)

// TestImagesArePulled: a registry's image becomes a root filesystem with a layer of its
// own, which goes with its storage.
func TestImagesArePulled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil { // an upper layer must not be on another overlay
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		store, err := image.New(image.Options{Root: dir + "/image", InProcess: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		ref := imagetest.NewRegistry(t).Push("app", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "hello", Body: []byte("hello")}}}}.Build())
		m := New()
		storage := func(name, source, metadata string) Storage {
			return Storage{Driver: "image_guest_pull", Source: source, Type: "overlay", Target: filepath.Join(dir, name, "rootfs"), DriverOptions: []string{"image_guest_pull=" + metadata}}
		}
		if err := m.Mount(t.Context(), storage("c0", ref, "{}")); !errdefs.IsNotImplemented(err) || slices.Contains(m.Drivers(), "image_guest_pull") {
			t.Errorf("an agent that pulls nothing: %v, %q", err, m.Drivers())
		}
		m.Puller = &Puller{Images: store, Roots: rootfs.New(rootfs.Options{})}
		if !slices.Contains(m.Drivers(), "image_guest_pull") || !slices.IsSorted(m.Drivers()) {
			t.Errorf("the drivers are %q", m.Drivers())
		}
		one, two := storage("c1", ref, `{"metadata":{"io.kubernetes.cri.container-type":"container"}}`), storage("c2", ref, "{}")
		for _, s := range []Storage{one, two} {
			if err := m.Mount(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(s.Target + "/hello"); err != nil || string(b) != "hello" {
				t.Errorf("%s has %q, %v", s.Target, b, err)
			}
		}
		if err := os.WriteFile(one.Target+"/made", nil, 0o600); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(two.Target + "/made"); !os.IsNotExist(err) {
			t.Errorf("two containers share a layer: %v", err)
		}
		if left, err := store.Checkouts(t.Context()); err != nil || len(left) != 2 {
			t.Errorf("checkouts: %v, %v", left, err)
		}
		for _, s := range []Storage{one, two} {
			if err := m.Unmount(t.Context(), s); err != nil {
				t.Error(err)
			}
			if is, err := mountinfo.Mounted(s.Target); err == nil && is {
				t.Errorf("%s is mounted", s.Target)
			}
		}
		for what, bad := range map[string]Storage{
			"no such image": storage("c3", strings.TrimSuffix(ref, "v1")+"v2", "{}"), "no image": storage("c3", "", "{}"), "no JSON": storage("c3", ref, "x"),
			"another option": {Driver: "image_guest_pull", Source: ref, Target: dir + "/c3", DriverOptions: []string{"create_filesystem"}},
			"a pod's own":    storage("c3", "pause", `{"metadata":{"io.kubernetes.cri-o.ContainerType":"sandbox"}}`),
		} {
			if err := m.Mount(t.Context(), bad); err == nil {
				t.Errorf("%s: it was mounted", what)
			}
		}
		if left, err := store.Checkouts(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("checkouts are left: %v, %v", left, err)
		}
		if err := m.Mount(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(); err != nil {
			t.Error(err)
		}
		if left, err := store.Checkouts(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("checkouts are left at the end: %v, %v", left, err)
		}
		put(t, dir+"/bundle/rootfs/pause", "")
		undo, err := m.Puller.mount(t.Context(), storage("c4", "pause", `{"metadata":{"io.kubernetes.cri.container-type":"sandbox"}}`), dir+"/bundle")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir + "/c4/rootfs/pause"); err != nil {
			t.Error(err)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
}
