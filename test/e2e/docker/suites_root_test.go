package docker

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// docker returns the directory of docker's command line, which some suites call: that of LONGSHORE_DOCKER_DIR, or "".
func docker() string {
	if dir := os.Getenv("LONGSHORE_DOCKER_DIR"); dir != "" {
		return filepath.Join(dir, "usr", "bin")
	}
	return ""
}

// home makes a home directory with an empty configuration of docker's clients, and returns the environment of a suite: the home, the
// caches of Go's tools that the test's own home has, and PATH with these directories first.
func (r *rig) home(path ...string) []string {
	r.t.Helper()
	dir := filepath.Join(r.dir, "home")
	if err := os.MkdirAll(filepath.Join(dir, ".docker"), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".docker", "config.json"), []byte("{}\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	env := []string{"HOME=" + dir, "PATH=" + strings.Join(append(path, docker(), os.Getenv("PATH")), string(filepath.ListSeparator))}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		value, err := r.command(r.dir, "go", "env", name).Output()
		if err != nil {
			r.t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	return env
}

// build runs go in a checkout, to build a program or a test.
func (r *rig) build(dir string, args ...string) {
	r.t.Helper()
	cmd := r.command(dir, "go", args...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("go %q: %v\n%s", args, err, out)
	}
}

// TestDockerPy runs docker-py's integration tests. DOCKERPY names a checkout.
func TestDockerPy(t *testing.T) {
	dir := handed(t, "DOCKERPY", "a checkout of docker-py (README.md)")
	roottest.Run(t, func(t *testing.T) {
		const python = "/usr/bin/python3"
		r := start(t)
		if out, err := r.command(r.dir, python, "-c", "import pytest, requests, websocket, paramiko").CombinedOutput(); err != nil {
			t.Skipf("docker-py's tests need python3-pytest, python3-requests, python3-websocket and python3-paramiko: %s", out)
		}
		known, log, report := load(t, "dockerpy.txt"), r.log("dockerpy.log"), filepath.Join(r.dir, "report.xml")
		args := []string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--junitxml=" + report}
		for _, row := range known.rows {
			if module, all, _ := strings.Cut(row.name, " "); row.kind == "out" && all == "*" {
				args = append(args, "--ignore="+filepath.Join("tests", "integration", module+".py"))
			}
		}
		if run := os.Getenv(runEnv); run != "" {
			args = append(args, "-k", run)
		}
		cmd := r.command(dir, python, append(args, "tests/integration")...)
		cmd.Env = append(append(cmd.Env, r.home()...), "DOCKER_TEST_API_VERSION=1.45", "PYTHONDONTWRITEBYTECODE=1")
		cmd.Stdout, cmd.Stderr = log, log
		run := cmd.Run()
		f, err := os.Open(report)
		if err != nil {
			t.Fatalf("pytest: %v; %v", run, err)
		}
		defer func() { _ = f.Close() }()
		o, err := readJUnit(f, log)
		if err != nil || len(o) == 0 {
			t.Fatalf("%d tests, %v, pytest: %v", len(o), err, run)
		}
		known.judge(t, o)
	})
}

// TestTestcontainersGo runs the tests of testcontainers-go's packages that need no module of a product. TESTCONTAINERS_GO names a
// checkout.
func TestTestcontainersGo(t *testing.T) {
	dir := handed(t, "TESTCONTAINERS_GO", "a checkout of testcontainers-go (README.md)")
	roottest.Run(t, func(t *testing.T) {
		r := start(t, "public.ecr.aws", "registry.hub.docker.com")
		known, all, log := load(t, "testcontainers.txt"), outcome{}, r.log("testcontainers.log")
		env := append(r.home(), "TESTCONTAINERS_RYUK_DISABLED=true")
		places := map[string]string{"testcontainers": ".", "network": "network", "wait": "wait"}
		tests := func(pkg, pattern string) outcome {
			cmd := r.command(filepath.Join(dir, places[pkg]), "go", known.args(pkg, filepath.Join(r.dir, pkg+".test"), pattern)...)
			cmd.Env = append(cmd.Env, env...)
			return r.goTests(cmd, log)
		}
		for pkg, work := range places {
			r.build(dir, "test", "-c", "-o", filepath.Join(r.dir, pkg+".test"), "./"+work)
			maps.Copy(all, tests(pkg, os.Getenv(runEnv)))
		}
		known.again(t, all, tests)
		known.judge(t, all)
	})
}

// TestComposeE2E runs Compose's own tests with the plugin that its sources build. COMPOSE_E2E names a checkout.
func TestComposeE2E(t *testing.T) {
	dir := handed(t, "COMPOSE_E2E", "a checkout of Compose (README.md)")
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		known, log, bin := load(t, "compose.txt"), r.log("compose.log"), filepath.Join(r.dir, "bin")
		plugin, binary := filepath.Join(bin, "docker-compose"), filepath.Join(r.dir, "e2e.test")
		r.build(dir, "build", "-ldflags=-X github.com/docker/compose/v5/internal.Version=v5.0.0", "-o", plugin, "./cmd")
		r.build(dir, "build", "-o", filepath.Join(bin, "example-provider"), "./docs/examples/provider.go")
		r.build(dir, "test", "-c", "-tags=e2e", "-o", binary, "./pkg/e2e")
		if err := os.Symlink(r.socket, "/run/docker.sock"); err != nil { // its scenarios leave out DOCKER_HOST
			t.Fatal(err)
		}
		env := append(r.home(bin), "COMPOSE_E2E_BIN_PATH="+plugin)
		tests := func(pkg, pattern string) outcome {
			cmd := r.command(filepath.Join(dir, "pkg", "e2e"), "go", known.args(pkg, binary, pattern)...)
			cmd.Env = append(cmd.Env, env...)
			return r.goTests(cmd, log)
		}
		all := tests("e2e", os.Getenv(runEnv))
		known.again(t, all, tests)
		known.judge(t, all)
	})
}

// args returns the arguments of go that run a compiled package's tests. It leaves out those of the table's rows, and takes only the names
// of a pattern.
func (t table) args(pkg, binary, pattern string) []string {
	args := []string{"tool", "test2json", "-p", pkg, binary, "-test.v=test2json", "-test.timeout=30m", "-test.parallel=4"}
	if out := t.leftOut(pkg); out != "" {
		args = append(args, "-test.skip="+out)
	}
	if pattern != "" {
		args = append(args, "-test.run="+pattern)
	}
	return args
}
