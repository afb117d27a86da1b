package etc_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
)

var names = []string{"resolv.conf", "hosts", "hostname"} //nolint:gochecknoglobals // a constant list

// sandbox returns a sandbox with the three files in its directory, each containing its name.
func sandbox(t *testing.T) *core.Sandbox {
	t.Helper()
	sb := &core.Sandbox{Dir: t.TempDir()}
	for _, name := range names {
		put(t, filepath.Join(sb.Dir, name), name)
	}
	return sb
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAnImageDoesNotLeadTheWriterAstray: with any image content in the place of the files or of
// /etc, the agent never writes outside of the root.
func TestAnImageDoesNotLeadTheWriterAstray(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the files are given to root")
	}
	for name, tc := range map[string]struct {
		image func(root, outside string) error
		left  []string // the files that could not be written
		where string   // the path of those that were
	}{
		"nothing": {func(string, string) error { return nil }, nil, "etc"},
		"files": {func(root, _ string) error {
			return os.Mkdir(root+"/etc", 0o700)
		}, nil, "etc"},
		"links to the outside": {func(root, outside string) error {
			return link(root+"/etc", outside+"/target", "../../outside/target", "resolv.conf")
		}, nil, "etc"},
		"a directory in a file's place": {func(root, _ string) error {
			return os.MkdirAll(root+"/etc/hosts/full", 0o755)
		}, []string{"hosts"}, "etc"},
		"etc is a link in the root": {func(root, _ string) error {
			if err := os.MkdirAll(root+"/usr/etc", 0o755); err != nil {
				return err
			}
			return os.Symlink("usr/etc", root+"/etc")
		}, nil, "usr/etc"},
		"etc is a link out of the root": {func(root, outside string) error { return os.Symlink(outside, root+"/etc") }, names, ""},
		"etc is a relative link out":    {func(root, _ string) error { return os.Symlink("../outside", root+"/etc") }, names, ""},
		"etc is a link to nothing":      {func(root, _ string) error { return os.Symlink("nothing", root+"/etc") }, names, ""},
		"etc is a file":                 {func(root, _ string) error { return os.WriteFile(root+"/etc", nil, 0o600) }, names, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
			put(t, outside+"/target", "untouched")
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tc.image(root, outside); err != nil {
				t.Fatal(err)
			}
			r, err := os.OpenRoot(root)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			left, err := etc.Write(r, sandbox(t), names)
			if err != nil || !slices.Equal(left, tc.left) {
				t.Errorf("left %v, %v; want %v", left, err, tc.left)
			}
			for _, name := range names {
				if slices.Contains(tc.left, name) {
					continue
				}
				path := filepath.Join(root, tc.where, name)
				st, err := os.Lstat(path)
				if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o644 {
					t.Errorf("%s: %v, %v", name, st, err)
				}
				if b, err := os.ReadFile(path); string(b) != name {
					t.Errorf("%s has %q, %v", name, b, err)
				}
			}
			if b, err := os.ReadFile(outside + "/target"); string(b) != "untouched" {
				t.Errorf("outside: %q, %v", b, err)
			}
			if in, err := os.ReadDir(outside); err != nil || len(in) != 1 {
				t.Errorf("outside: %v, %v", in, err)
			}
		})
	}
}

// link makes dir with a link in the place of each file.
func link(dir string, to ...string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i, name := range names {
		if err := os.Symlink(to[i], filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// TestTheOldWayIsLedAstray is the control of the test above: a write by path follows the image's
// link.
func TestTheOldWayIsLedAstray(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/outside/target", "untouched")
	if err := os.MkdirAll(dir+"/root/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+"/outside/target", dir+"/root/etc/hosts"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/root/etc/hosts", []byte("written"), fs.FileMode(0o644)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(dir + "/outside/target"); string(b) != "written" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestCovered(t *testing.T) {
	for dest, want := range map[string]bool{"/etc": true, "/etc/": true, "/": true, "/etcetera": false, "/etc/ssl": false, "/usr": false, "etc": true} {
		if got := etc.Covered([]specs.Mount{{Destination: "/proc"}, {Destination: dest}}); got != want {
			t.Errorf("%q: %v", dest, got)
		}
	}
}
