package stdio

import (
	"os"
	"testing"
)

func TestNumberedFilesGrowUpwards(t *testing.T) {
	b := newBench(t)
	k := b.src.Sinks[1]
	k.Path, k.MaxBytes, k.MaxFiles, k.Numbered = b.path("web.stdout.0"), 10, 3, true
	move := func(texts ...string) {
		for _, s := range texts {
			b.write(s)
			b.pump.Move(b.src)
		}
	}
	holds := func(want map[string]string) {
		t.Helper()
		for name, w := range want {
			got, err := os.ReadFile(b.path(name))
			if err != nil && w != "" || string(got) != w {
				t.Errorf("%s holds %q, %v", name, got, err)
			}
		}
	}
	move("aaaaaa", "bbbbbb")
	// A task's next start, or a keeper after its predecessor's crash, knows the
	// first name only.
	k.Close()
	k.Path = b.path("web.stdout.0")
	if err := os.WriteFile(b.path("web.stdout.x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	move("cc", "dddddd", "eeeeee")
	holds(map[string]string{"web.stdout.0": "", "web.stdout.1": "bbbbbbcc", "web.stdout.2": "dddddd", "web.stdout.3": "eeeeee", "web.stdout.4": ""})
	if fi, err := os.Stat(b.path("web.stdout.3")); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	// A writer of the directory must not lead us elsewhere.
	k.Close()
	if err := os.Symlink(b.path("elsewhere"), b.path("web.stdout.9")); err != nil {
		t.Fatal(err)
	}
	b.write("lost")
	if _, lost := b.pump.Move(b.src); lost != 4 {
		t.Errorf("%d bytes lost through a symbolic link, want 4", lost)
	}
	if _, err := os.Lstat(b.path("elsewhere")); err == nil {
		t.Error("a symbolic link was followed")
	}
}
