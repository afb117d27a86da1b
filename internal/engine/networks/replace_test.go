package networks

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplaceLeavesWhatTheWorkloadHasChanged(t *testing.T) {
	const before, after = "nameserver 192.0.2.1\n", "nameserver 192.0.2.2\nsearch example.org\n"
	write := func(t *testing.T, path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, file, outside string)
		want string // "": the file need not exist
		out  string // the file outside
	}{
		"unchanged":         {func(t *testing.T, file, _ string) { write(t, file, before) }, after, before},
		"changed":           {func(t *testing.T, file, _ string) { write(t, file, "nameserver 192.0.2.9\n") }, "nameserver 192.0.2.9\n", before},
		"changed, but long": {func(t *testing.T, file, _ string) { write(t, file, before+"options rotate\n") }, before + "options rotate\n", before},
		"not there":         {func(*testing.T, string, string) {}, "", before},
		"a link out of the container": {func(t *testing.T, file, outside string) {
			write(t, filepath.Join(filepath.Dir(file), "x"), "")
			if err := os.Symlink(outside, file); err != nil {
				t.Fatal(err)
			}
		}, before, before},
		"a directory that leads out": {func(t *testing.T, file, outside string) {
			if err := os.Symlink(filepath.Dir(outside), filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
		}, before, before},
		"a directory": {func(t *testing.T, file, _ string) {
			if err := os.MkdirAll(file, 0o755); err != nil {
				t.Fatal(err)
			}
		}, "", before},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			base, outside := filepath.Join(dir, "rootfs"), filepath.Join(dir, "host", "resolv.conf")
			write(t, outside, before)
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(base, "etc", "resolv.conf")
			c.make(t, file, outside)
			if err := replace(base, "etc/resolv.conf", []byte(before), []byte(after)); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(outside); string(got) != c.out {
				t.Errorf("outside of the container: %q, %v", got, err)
			}
			if got, err := os.ReadFile(file); c.want != "" && string(got) != c.want {
				t.Errorf("%q, %v; not %q", got, err, c.want)
			}
		})
	}
}
