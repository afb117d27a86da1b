package docker

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestCommandLine runs the tests of docker's command line with the program that it builds. CLI_E2E names a
// checkout of its sources.
func TestCommandLine(t *testing.T) {
	dir := handed(t, "CLI_E2E", "a checkout of docker's command line (docs/testing.md)")
	roottest.Run(t, func(t *testing.T) {
		const registry = "registry:5000"
		r := start(t, registry)
		for _, name := range []string{"privateregistry:5001", "tlsregistry:5003"} {
			r.serve(name).Intercept(closed)
		}
		r.pull(registry+"/alpine:frozen", registry+"/busybox:frozen")
		known, log := load(t, "cli.txt"), r.log("cli.log")
		programs, plugins := filepath.Join(r.dir, "bin"), filepath.Join(r.dir, "plugins")
		build := func(what, program string) {
			if out, err := r.command(dir, "go", "build", "-o", program, what).CombinedOutput(); err != nil {
				t.Fatalf("build %s: %v\n%s", what, err, out)
			}
		}
		build("./cmd/docker", filepath.Join(programs, "docker"))
		for _, pattern := range []string{"e2e/cli-plugins/plugins/*", "cli-plugins/examples/*"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil || len(found) == 0 {
				t.Fatalf("the checkout has no %s: %v", pattern, err)
			}
			for _, plugin := range found {
				build(plugin, filepath.Join(plugins, "docker-"+filepath.Base(plugin)))
			}
		}
		tests := func(pkg, pattern string) outcome {
			args := []string{"test", "-json", "-count=1", "-p=1", "-timeout=20m"}
			if out := known.leftOut("*"); out != "" {
				args = append(args, "-skip="+out)
			}
			if pattern != "" {
				args = append(args, "-run="+pattern)
			}
			cmd := r.command(dir, "go", append(args, "./e2e/"+pkg)...)
			cmd.Env = append(cmd.Env, "PATH="+programs+":"+os.Getenv("PATH"), "TEST_DOCKER_HOST=unix://"+r.socket,
				"TEST_SKIP_PLUGIN_TESTS=1", "DOCKER_CLI_E2E_PLUGINS_EXTRA_DIRS="+plugins)
			return r.goTests(cmd, log)
		}
		all := tests("...", os.Getenv(runEnv))
		known.again(t, all, tests)
		known.judge(t, all)
	})
}

// closed lets in the user that the suite's configuration has, and nobody else.
func closed(w http.ResponseWriter, req *http.Request, next http.Handler) {
	if user, password, _ := req.BasicAuth(); user == "e2e" && password == "password" {
		next.ServeHTTP(w, req)
		return
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="closed"`)
	http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
}
