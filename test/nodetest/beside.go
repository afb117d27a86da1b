package nodetest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/dockerd"
)

// DockerHome is the directory of the unpacked packages, and one for all that a dockerd keeps.
func DockerHome(t *testing.T) (packages, home string) {
	t.Helper()
	packages = os.Getenv(dockerd.DirEnv)
	if packages == "" {
		t.Skipf("no dockerd: set %s to the directory of the unpacked packages (hack/dockerd.sh DIR)", dockerd.DirEnv)
	}
	home, err := os.MkdirTemp("", "longshore-dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dockerd.RemoveHome(home); err != nil {
			t.Errorf("remove dockerd's directory: %v", err)
		}
	})
	return packages, home
}

// ServeBusybox serves the test's image at an address of the machine's, and says how a node of ours
// finds the registry: by the files of a directory.
func ServeBusybox(t *testing.T, addr string) (ref, certs string) {
	t.Helper()
	built, err := BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	certs = t.TempDir()
	if err := os.Mkdir(filepath.Join(certs, registry.Host), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, registry.Host, "hosts.toml"), []byte("server = \"http://"+registry.Host+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return registry.Push("busybox", "latest", built), certs
}
