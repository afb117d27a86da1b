package node

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestImportOfARootFileSystem makes images of the files of a container, and runs them. Archives of images stay such.
func TestImportOfARootFileSystem(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		v.must(t, "run", "-d", "--name", "first", "-v", "vol:/vol", v.image, "/bin/sh", "-c", "echo volume > /vol/x; echo kept > /made && chown 7:8 /made && chmod 4711 /made && exec sleep 1000")
		roottest.Eventually(t, "it is ready", func() bool { _, err := v.CLI("exec", "first", "/bin/sh", "-c", "[ -u /made ]"); return err == nil })
		dir := t.TempDir()
		tar := filepath.Join(dir, "root.tar")
		v.must(t, "container", "export", "-o", tar, "first")
		id := v.must(t, "import", "-c", `CMD ["/bin/cat", "/made"]`, "-c", "ENV A=1", "-m", "flat", tar, "flat:1")
		if !strings.HasPrefix(id, "sha256:") {
			t.Errorf("import: %q", id)
		}
		if got := v.must(t, "run", "--rm", "flat:1"); strings.TrimSpace(got) != "kept" {
			t.Errorf("its command: %q", got)
		}
		if got := v.must(t, "run", "--rm", "flat:1", "/bin/sh", "-c", "stat -c '%a %u:%g' /made; echo $A; ls /vol"); strings.TrimSpace(got) != "4711 7:8\n1" {
			t.Errorf("its files: %q", got)
		}
		if h := v.must(t, "history", "--format", "{{.Comment}}", "flat:1"); strings.TrimSpace(h) != "flat" {
			t.Errorf("history: %q", h)
		}
		unnamed := strings.TrimSpace(v.must(t, "import", tar))
		if got := v.must(t, "run", "--rm", unnamed, "/bin/cat", "/made"); strings.TrimSpace(got) != "kept" {
			t.Errorf("without a name: %q", got)
		}
		saved := filepath.Join(dir, "saved.tar")
		v.must(t, "save", "-o", saved, "flat:1")
		v.must(t, "rmi", "flat:1")
		if out := v.must(t, "import", saved); !strings.HasSuffix(strings.TrimSpace(out), "flat:1") {
			t.Errorf("an archive of images: %q", out)
		}
		before := v.must(t, "images", "-q")
		for _, bad := range [][]string{
			{"names and settings of their own", "import", saved, "other"},
			{"RUN", "import", "-c", "RUN true", tar, "other"},
			{"read the root file system", "import", cut(t, tar), "other"},
			{"", "load", "-i", tar},
			{"invalid", "import", tar, "NO:name:at:all"},
		} {
			if _, err := v.CLI(bad[1:]...); err == nil || !strings.Contains(err.Error(), bad[0]) {
				t.Errorf("%q: %v", bad[1:], err)
			}
		}
		if after := v.must(t, "images", "-q"); after != before {
			t.Errorf("errors left images: %q, before %q", after, before)
		}
		v.must(t, "rm", "-f", "first")
	})
}

// cut compresses a file and returns the name of a file with the first half of the result.
func cut(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	short := name + ".short.gz"
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(short, zipped.Bytes()[:zipped.Len()/2], 0o600); err != nil {
		t.Fatal(err)
	}
	return short
}
