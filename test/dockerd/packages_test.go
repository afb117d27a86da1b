package dockerd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackagesWithACLibrary: packages with a loader run with their own libraries: the command line by the
// loader, dockerd with the packages over /usr. Other packages run with the machine's loader.
func TestPackagesWithACLibrary(t *testing.T) {
	packages := t.TempDir()
	program := packages + "/usr/bin/docker"
	d := &Daemon{o: Options{Packages: packages, Home: t.TempDir()}}
	libraries := func() bool {
		return slices.ContainsFunc(d.env(), func(v string) bool { return v == "LD_LIBRARY_PATH="+packages+"/usr/lib/x86_64-linux-gnu" })
	}
	t.Setenv("LD_LIBRARY_PATH", "")
	if err := os.MkdirAll(packages+"/usr/lib/x86_64-linux-gnu", 0o755); err != nil {
		t.Fatal(err)
	}
	if got := CLI(packages); !slices.Equal(got, []string{program}) {
		t.Errorf("the command line is %q", got)
	}
	if got := strings.Join(d.o.alone("dockerd"), " "); strings.Contains(got, "overlay") || !libraries() {
		t.Errorf("dockerd is %q with %q", got, d.env())
	}
	loader := packages + "/usr/lib64/ld-linux-x86-64.so.2"
	if err := os.MkdirAll(filepath.Dir(loader), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loader, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := CLI(packages); !slices.Equal(got, []string{loader, "--library-path", packages + "/usr/lib/x86_64-linux-gnu", program}) {
		t.Errorf("the command line is %q", got)
	}
	if got := strings.Join(d.o.alone("dockerd"), " "); !strings.Contains(got, "lowerdir="+packages+"/usr:/usr") || libraries() {
		t.Errorf("dockerd is %q with %q", got, d.env())
	}
}
