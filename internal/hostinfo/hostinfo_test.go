package hostinfo

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	release := write("release", "# comment\nPRETTY_NAME=\"Some \\\"OS\\\" 1\"\nVERSION_ID='1.2'\nID=some\n")
	machine := write("machine", strings.Repeat("ab", 16)+"\n")
	h := read(release, machine)
	if h.System != `Some "OS" 1` || h.Version != "1.2" || h.CPUs != runtime.NumCPU() || h.Memory == 0 || h.Kernel == "" || h.Name == "" || h.Machine == "" {
		t.Errorf("host %+v", h)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(h.ID) || strings.Contains(strings.ReplaceAll(h.ID, "-", ""), "abab") {
		t.Errorf("id %s", h.ID)
	}
	if again := read(release, machine); again.ID != h.ID {
		t.Error("the id is another one")
	}
	if other := read(release, write("other", "x")); other.ID == h.ID {
		t.Error("two machines have one id")
	}
	if none := read(filepath.Join(dir, "none"), filepath.Join(dir, "none")); none.System != "" || none.ID == "" {
		t.Errorf("without files: %+v", none)
	}
}

// TestTreeBytes shows that a file with two names is counted once, that links are not followed, and that a missing directory is
// empty.
func TestTreeBytes(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	content := make([]byte, 64<<10)
	for _, path := range []string{filepath.Join(dir, "a"), filepath.Join(outside, "big")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, err := TreeBytes(t.Context(), dir)
	if err != nil || before < uint64(len(content)) || before > uint64(2*len(content)) {
		t.Fatalf("%d bytes, %v", before, err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if after, err := TreeBytes(t.Context(), dir); err != nil || after > before+4096 {
		t.Errorf("%d bytes with links, %d without, %v", after, before, err)
	}
	if n, err := TreeBytes(t.Context(), filepath.Join(dir, "none")); n != 0 || err != nil {
		t.Errorf("missing directory: %d, %v", n, err)
	}
}

func FuzzOSRelease(f *testing.F) {
	f.Add("PRETTY_NAME=\"a\"\nB='c'\nD")
	path := filepath.Join(f.TempDir(), "release")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for name := range osRelease(path) {
			if strings.Contains(name, "=") {
				t.Errorf("name %q", name)
			}
		}
	})
}
