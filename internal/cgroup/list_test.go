package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestListIsOfAllHierarchies lists trees that are alike, that lack parts of the first, and that
// have as many parts but others.
func TestListIsOfAllHierarchies(t *testing.T) {
	for what, dirs := range map[string][3][]string{
		"alike":                  {{"a/b", "a/c", "d"}, {"a/b", "a/c", "d"}, {"a/b", "a/c", "d"}},
		"nothing":                {},
		"only in the last":       {nil, nil, {"a/b/c"}},
		"only in the first":      {{"a/b/c"}, nil, {"a"}},
		"as many, but others":    {{"a/b", "d/e"}, {"a/x", "d/e"}, {"a/b", "y/e"}},
		"fewer and more":         {{"a", "b"}, {"a", "b", "c/d"}, {"a"}},
		"a file by that name":    {{"a", "b"}, {"a", "c", "b."}, nil},
		"deeper than the others": {{"a/b"}, {"a/b/c/d"}, {"a/b/c"}},
	} {
		t.Run(what, func(t *testing.T) {
			root, mounts := t.TempDir(), ""
			var want []string
			for i, hierarchy := range dirs {
				mount := filepath.Join(root, fmt.Sprint(i))
				mounts += fmt.Sprintf("%d 22 0:%d / %s rw - cgroup cgroup rw,%s\n", i+30, i+30, mount, []string{"cpu", "memory", "pids"}[i])
				if err := os.MkdirAll(mount, 0o700); err != nil {
					t.Fatal(err)
				}
				for _, d := range hierarchy {
					path := filepath.Join(mount, "longshore", d)
					if name, ok := cutDot(d); ok {
						if err := os.WriteFile(filepath.Join(mount, "longshore", name), nil, 0o600); err != nil {
							t.Fatal(err)
						}
						continue
					}
					if err := os.MkdirAll(path, 0o700); err != nil {
						t.Fatal(err)
					}
					for ; d != "."; d = filepath.Dir(d) {
						want = append(want, "/longshore/"+d)
					}
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			got, err := tree(t, mounts).List(t.Context())
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		})
	}
}

// cutDot tells a file from a directory.
func cutDot(name string) (string, bool) {
	if last := len(name) - 1; name[last] == '.' {
		return name[:last], true
	}
	return name, false
}
