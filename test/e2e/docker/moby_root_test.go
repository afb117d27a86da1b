package docker

import (
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// mobyImages are the images that moby's integration tests want to find.
var mobyImages = []string{"busybox:latest", "busybox:glibc", "debian:trixie-slim", "hello-world:amd64", "hello-world:arm64", "hello-world:latest", "arm32v7/hello-world:latest"}

// TestMobyIntegration runs moby's integration tests. MOBY_TESTS names a directory with their compiled
// binaries PACKAGE.test, and beside each, if there is one, the package's directory with its testdata.
func TestMobyIntegration(t *testing.T) {
	const variable = "MOBY_TESTS"
	dir := handed(t, variable, "a directory with moby's compiled integration tests (docs/testing.md)")
	roottest.Run(t, func(t *testing.T) {
		binaries, err := filepath.Glob(filepath.Join(dir, "*.test"))
		if err != nil || len(binaries) == 0 {
			t.Fatalf("%s=%s has no PACKAGE.test: %v", variable, dir, err)
		}
		r := start(t)
		r.pull(mobyImages...)
		r.post("/images/hello-world:latest/tag", url.Values{"repo": {"hello-world"}, "tag": {"frozen"}})
		known, all := load(t, "moby.txt"), outcome{}
		log := r.log("moby.log")
		tests := func(pkg, pattern string) outcome {
			work := filepath.Join(dir, pkg)
			if s, err := os.Stat(work); err != nil || !s.IsDir() {
				work = dir
			}
			args := []string{"tool", "test2json", "-p", pkg, filepath.Join(dir, pkg+".test"), "-test.v=test2json", "-test.timeout=20m"}
			if out := known.leftOut(pkg); out != "" {
				args = append(args, "-test.skip="+out)
			}
			if pattern != "" {
				args = append(args, "-test.run="+pattern)
			}
			cmd := r.command(work, "go", args...)
			cmd.Env = append(cmd.Env, "TEST_INTEGRATION_USE_GRAPHDRIVER=1")
			return r.goTests(cmd, log)
		}
		for _, binary := range binaries {
			maps.Copy(all, tests(strings.TrimSuffix(filepath.Base(binary), ".test"), os.Getenv(runEnv)))
		}
		known.again(t, all, tests)
		known.judge(t, all)
	})
}
