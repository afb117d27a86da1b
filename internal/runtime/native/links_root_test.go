package native_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
)

func TestAMountOntoALinkThatLeadsNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll(beneathtest.Outside, 0o777); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("mounted\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"", " in a user namespace", " in a user namespace that owns the root"} {
			edit := nativetest.InUserns
			if kind == "" {
				edit = func(s *specs.Spec) *specs.Spec { return s }
			}
			for _, c := range beneathtest.DanglingLinks() {
				// Remove an earlier container's entries.
				top, _, _ := strings.Cut(strings.TrimPrefix(c.At, "/"), "/")
				if top = filepath.Join(n.root, top); c.At != "" && !strings.HasPrefix(c.At, beneathtest.Outside) {
					if err := os.RemoveAll(top); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.RemoveAll(n.root + beneathtest.Outside); err != nil {
					t.Fatal(err)
				}
				if err := c.Make(n.root); err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(kind, "root") {
					give(t, n.root, 100000)
				}
				s := edit(script("cat " + c.Visible()))
				s.Mounts = append(s.Mounts, specs.Mount{Destination: c.Mount, Type: "bind", Source: c.Source(dir), Options: []string{"bind", "ro"}})
				if c.At == "" {
					if id, err := n.held(t.Context(), t, s); err == nil {
						t.Errorf("%s%s: container %s, %v", c.Name, kind, id, err)
					}
					continue
				}
				if out := n.output(t, s); out != "mounted\n" {
					t.Errorf("%s%s: %q", c.Name, kind, out)
				}
			}
		}
		if left, err := os.ReadDir(beneathtest.Outside); err != nil || len(left) > 0 {
			t.Errorf("made outside of the root: %v, %v", left, err)
		}
	})
}

// give makes a tree a user's.
func give(t *testing.T, root string, uid int) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, uid, uid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAMountBelowALinkToAMount: /var/run is a link to /run, and a tmpfs or a volume is mounted on
// that.
func TestAMountBelowALinkToAMount(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		file, volume := filepath.Join(t.TempDir(), "file"), t.TempDir()
		if err := os.WriteFile(file, []byte("mounted\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(filepath.Dir(file), 0o755), os.Chmod(volume, 0o777), os.MkdirAll(n.root+"/var", 0o755), os.Symlink("/linked", n.root+"/var/run"), os.Symlink("/vol/in/it", volume+"/link")); err != nil {
			t.Fatal(err)
		}
		tmpfs := specs.Mount{Destination: "/linked", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}}
		vol := specs.Mount{Destination: "/vol", Type: "bind", Source: volume, Options: []string{"bind"}}
		bind := func(to string) specs.Mount {
			return specs.Mount{Destination: to, Type: "bind", Source: file, Options: []string{"bind", "ro"}}
		}
		for name, c := range map[string]struct {
			mounts []specs.Mount
			want   string
		}{
			"a tmpfs":                  {[]specs.Mount{tmpfs, bind("/var/run/secrets/a")}, "/linked/secrets/a"},
			"a tmpfs by its own name":  {[]specs.Mount{tmpfs, bind("/linked/b")}, "/linked/b"},
			"a tmpfs on the link":      {[]specs.Mount{{Destination: "/var/run", Type: "tmpfs", Source: "tmpfs"}, bind("/linked/c")}, "/var/run/c"},
			"a volume's link":          {[]specs.Mount{vol, bind("/vol/link")}, "/vol/in/it"},
			"a volume beside the link": {[]specs.Mount{vol, bind("/vol/new/x")}, "/vol/new/x"},
		} {
			for kind, edit := range map[string]func(*specs.Spec) *specs.Spec{"": func(s *specs.Spec) *specs.Spec { return s }, " in a user namespace": nativetest.InUserns} {
				if kind != "" && strings.Contains(name, "volume") {
					continue // its directory is not the namespace's
				}
				s := edit(script("cat " + c.want))
				s.Mounts = append(s.Mounts, c.mounts...)
				if out := n.output(t, s); out != "mounted\n" {
					t.Errorf("%s%s: %q", name, kind, out)
				}
			}
		}
	})
}

// TestNothingIsMadeOutsideWhileLinksAreExchanged: somebody exchanges a directory of the root for a
// link that leads to nothing on the host, while containers are created.
func TestNothingIsMadeOutsideWhileLinksAreExchanged(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		const outside = beneathtest.Outside
		if err := errors.Join(os.MkdirAll(outside, 0o777), os.MkdirAll(n.root+"/x/dir", 0o755)); err != nil {
			t.Fatal(err)
		}
		for _, target := range []string{outside + "/new", "../../../../../../../.." + outside + "/new"} {
			if err := os.Symlink(target, n.root+"/x/link"); err != nil {
				t.Fatal(err)
			}
			for _, edit := range []func(*specs.Spec) *specs.Spec{func(s *specs.Spec) *specs.Spec { return s }, nativetest.InUserns} {
				stop := beneathtest.Exchange(t, n.root+"/x/dir", n.root+"/x/link")
				attempts(t, n, outside, func() *specs.Spec {
					s := edit(script("true"))
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x/dir/sub/deep", Type: "tmpfs", Source: "tmpfs"})
					for _, made := range []string{"/x/dir/sub", "/x/link/sub", outside} { // it is made again each time
						_ = os.RemoveAll(n.root + made)
					}
					return s
				})
				if stop() == 0 {
					t.Error("nothing was exchanged")
				}
			}
			for _, p := range []string{"/x/dir", "/x/link"} {
				if st, err := os.Lstat(n.root + p); err == nil && st.Mode()&os.ModeSymlink != 0 {
					_ = os.Remove(n.root + p)
				}
			}
			_ = os.MkdirAll(n.root+"/x/dir", 0o755)
		}
	})
}
