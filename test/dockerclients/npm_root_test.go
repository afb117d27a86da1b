package dockerclients_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// oldestNode is the version of node that the packages need.
const oldestNode = 20

// installPatience is how long npm may take to download the packages.
const installPatience = time.Minute

// TestDockerode runs testdata/node/client.js.
func TestDockerode(t *testing.T) {
	n := npmPackages(t)
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		r.script(n, "client.js")
		r.empty()
	})
}

// TestTestcontainersForNode runs testdata/node/testcontainers.js. The reaper removes the containers that it leaves.
func TestTestcontainersForNode(t *testing.T) {
	n := npmPackages(t)
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		r.hub.Push(nodetest.Ryuk, nodetest.RyukTag, nodetest.RyukImage(t, "../e2e/dockerclients/ryuk/main.go"))
		t.Setenv("TESTCONTAINERS_RYUK_RECONNECTION_TIMEOUT", "1s")
		if out := r.script(n, "testcontainers.js"); !strings.HasSuffix(out, "left\n") {
			t.Errorf("output: %q", out)
		}
		nodetest.Eventually(t, "the reaper removes all", func() bool { return r.get("/containers/json?all=1") == "[]\n" })
		r.empty()
	})
}

// TestDevcontainers takes a development container through its life by @devcontainers/cli, which calls docker's command line.
func TestDevcontainers(t *testing.T) {
	n := npmPackages(t)
	roottest.Run(t, func(t *testing.T) {
		r := startDocker(t)
		work := filepath.Join(r.dir, "work")
		if err := os.MkdirAll(filepath.Join(work, ".devcontainer"), 0o755); err != nil {
			t.Fatal(err)
		}
		config := `{"image":"busybox","containerEnv":{"A":"b"},"remoteEnv":{"C":"d"},"forwardPorts":[80],"postCreateCommand":"echo made >made","mounts":["type=volume,source=kept,target=/kept"]}`
		if err := os.WriteFile(filepath.Join(work, ".devcontainer/devcontainer.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		devcontainer := func(command string, args ...string) string {
			return r.script(n, filepath.Join(n.packages, "@devcontainers/cli/devcontainer.js"), append([]string{command, "--docker-path", r.program, "--workspace-folder", work}, args...)...)
		}
		var up struct{ Outcome, ContainerID, RemoteUser, RemoteWorkspaceFolder string }
		for _, again := range []bool{false, true} { // the second time it finds the container
			before := up.ContainerID
			if err := json.Unmarshal([]byte(devcontainer("up")), &up); err != nil || up.Outcome != "success" || up.RemoteWorkspaceFolder != "/workspaces/work" || again && up.ContainerID != before {
				t.Fatalf("up: %+v, %v", up, err)
			}
			if again {
				break
			}
			r.docker("stop", "-t", "0", up.ContainerID)
		}
		if got := devcontainer("exec", "sh", "-c", "pwd; echo $A $C; cat made"); got != "/workspaces/work\nb d\nmade\n" {
			t.Errorf("exec: %q", got)
		}
		if text, err := os.ReadFile(filepath.Join(work, "made")); err != nil || string(text) != "made\n" {
			t.Errorf("the workspace: %q, %v", text, err)
		}
		r.docker("rm", "-f", up.ContainerID)
		r.docker("volume", "rm", "kept")
		r.empty()
	})
}

// script runs a client of node's, a file of testdata/node or of a package. It must succeed, and its standard output is returned.
func (r *rig) script(n node, name string, args ...string) string {
	r.t.Helper()
	if !filepath.IsAbs(name) {
		var err error
		if name, err = filepath.Abs(filepath.Join("testdata/node", name)); err != nil {
			r.t.Fatal(err)
		}
	}
	code, out, errs := r.output("", "env", append([]string{"NODE_PATH=" + n.packages, n.program, name}, args...)...)
	if code != 0 {
		r.t.Fatalf("%s %q: exit code %d\n%s%s", name, args, code, out, errs)
	}
	return out
}

// node is the program of this name, and the directory of the packages for its scripts.
type node struct {
	program, packages string
}

// npmPackages returns node with the packages of the lock file, in the user's cache. They are
// installed before the test enters its own network namespace.
func npmPackages(t *testing.T) node {
	t.Helper()
	if os.Getenv(roottest.Env) != "1" {
		t.Skipf("needs root and a real kernel: set %s=1", roottest.Env)
	}
	program, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node in PATH")
	}
	var major int
	if version, err := exec.CommandContext(t.Context(), program, "--version").Output(); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscanf(string(version), "v%d.", &major); err != nil || major < oldestNode {
		t.Skipf("node %s is older than %d, which the packages need: %v", bytes.TrimSpace(version), oldestNode, err)
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
	return node{program, filepath.Join(dir, "node_modules")}
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
