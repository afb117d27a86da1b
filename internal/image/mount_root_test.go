package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestCheckoutsCanBeMounted(t *testing.T) { roottest.Run(t, checkoutsCanBeMounted) }

func checkoutsCanBeMounted(t *testing.T) {
	t.Helper()
	type layers = [][]imagetest.File
	reg := imagetest.NewRegistry(t)
	s := open(t, t.TempDir())
	for name, tc := range map[string]struct {
		layers layers
		want   []string
	}{
		"scratch":     {nil, nil},
		"one-layer":   {layers{{{Name: "./", Mode: 0o711}, {Name: "a"}}}, []string{"a"}},
		"two-layers":  {layers{{{Name: "a"}, {Name: "b"}}, {{Name: ".wh.a"}, {Name: "c"}}}, []string{"b", "c"}},
		"opaque-root": {layers{{{Name: "a"}, {Name: "d/"}, {Name: "d/x"}}, {{Name: ".wh..wh..opq"}, {Name: "b"}}, {{Name: "d/"}, {Name: "d/y"}}}, []string{"b", "d", "d/y"}},
	} {
		img, err := s.Pull(t.Context(), "cri", reg.Push(name, "v1", imagetest.Image{Layers: tc.layers}.Build()), core.PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, readOnly := range []bool{false, true} {
			id := core.ID(name + map[bool]string{true: "-ro", false: "-rw"}[readOnly])
			co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: id, Image: img.ID, ReadOnly: readOnly})
			if err != nil {
				t.Fatal(err)
			}
			root := mounted(t, co)
			if diff := cmp.Diff(tc.want, names(t, root)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", id, diff)
			}
			if readOnly {
				continue // ro of a bind mount takes a remount, which is the mounter's task
			}
			write(t, filepath.Join(root, "made/file"), "by the container")
			st, err := s.RootStats(t.Context(), id)
			if err != nil || st.Inodes.N != 3 {
				t.Errorf("%s: root stats %+v, %v", id, st, err)
			}
		}
		// Other containers do not see the writes of one.
		co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: core.ID(name + "-other"), Image: img.ID})
		if err != nil {
			t.Fatal(err)
		}
		root := mounted(t, co)
		if diff := cmp.Diff(tc.want, names(t, root)); diff != "" {
			t.Errorf("%s in another container (-want +got):\n%s", name, diff)
		}
		if fi, err := os.Stat(root); name == "one-layer" && (err != nil || fi.Mode().Perm() != 0o711) {
			t.Errorf("root has mode %v, %v", fi.Mode(), err)
		}
	}
}

// names lists the entries below dir, in order.
func names(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if rel, rerr := filepath.Rel(dir, path); rerr == nil && rel != "." {
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
