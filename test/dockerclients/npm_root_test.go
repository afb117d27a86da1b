package dockerclients_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
)

// installPatience is how long npm may take to download the packages.
const installPatience = time.Minute

// TestDockerode runs testdata/node/client.js. The packages are installed before the test enters its own network namespace.
func TestDockerode(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node in PATH")
	}
	dir := npmPackages(t)
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		if code, out, errs := r.output("", node, filepath.Join(dir, "client.js")); code != 0 {
			t.Errorf("exit code %d\n%s%s", code, out, errs)
		}
		r.empty()
	})
}

// npmPackages returns a directory with the script and the packages of the lock file, in the user's cache.
func npmPackages(t *testing.T) string {
	t.Helper()
	if os.Getenv(roottest.Env) != "1" {
		t.Skipf("needs root and a real kernel: set %s=1", roottest.Env)
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("no npm in PATH")
	}
	lock, err := os.ReadFile("testdata/node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no directory for npm's packages: %v", err)
	}
	dir := filepath.Join(cache, "longshore-test", fmt.Sprintf("npm-%x", sha256.Sum256(lock))[:20])
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		install(t, npm, dir)
	} else if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/node/client.js")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "client.js"), script, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// install runs npm ci, and gives the directory its name when the installation is complete.
func install(t *testing.T, npm, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("testdata/node", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(tmp, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), installPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("npm's registry has no packages for the test: %v\n%s", err, out)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}
