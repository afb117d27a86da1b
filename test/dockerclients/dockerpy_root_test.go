package dockerclients_test

import (
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// debianPython is the Python of Debian's packages; another one may come first in PATH.
const debianPython = "/usr/bin/python3"

// TestDockerPy runs testdata/client.py.
func TestDockerPy(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		code, version, errs := r.output("", debianPython, "-c", "import docker; print(docker.__version__)")
		if code != 0 {
			t.Skipf("no docker-py, Debian's python3-docker: %s", errs)
		}
		t.Logf("docker-py %s", version)
		script, err := filepath.Abs("testdata/client.py")
		if err != nil {
			t.Fatal(err)
		}
		if code, out, errs := r.output("", debianPython, script); code != 0 {
			t.Errorf("exit code %d\n%s%s", code, out, errs)
		}
		r.empty()
	})
}
