package dockerclients

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

// leavesEnv makes a process of this program leave its containers behind (see leave).
const leavesEnv = "LONGSHORE_TEST_LEAVES"

func TestMain(m *testing.M) {
	if os.Getenv(leavesEnv) == "1" {
		leave()
		return
	}
	os.Exit(m.Run())
}

// rig is a node with Docker's API at two sockets. Its registry has busybox and the reaper, by the names of Docker Hub.
type rig struct {
	*nodetest.Node
	socket, readSocket string
}

func start(t *testing.T) rig {
	t.Helper()
	nodetest.Bridge(t, "clients0", "10.96.0.1/24")
	dir, err := os.MkdirTemp("", "longshore-modules-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	registry := images(t)
	mirror := filepath.Join(dir, "certs/docker.io")
	if err := os.MkdirAll(mirror, 0o755); err == nil {
		err = os.WriteFile(mirror+"/hosts.toml", fmt.Appendf(nil, "server = \"http://%s\"\n", registry.Host), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := rig{socket: dir + "/docker.sock", readSocket: dir + "/read.sock"}
	r.Node = nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.docker]\nenabled = true\nsocket = %q\nread_socket = %q\n",
		dir+"/certs", r.socket, r.readSocket)})
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_HOST", "unix://"+r.socket)
	return r
}

// images starts a registry with the images.
func images(t *testing.T) *imagetest.Registry {
	t.Helper()
	registry := imagetest.NewRegistry(t)
	busybox, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	registry.Push("library/busybox", "latest", busybox)
	registry.Push(nodetest.Ryuk, nodetest.RyukTag, nodetest.RyukImage(t, "ryuk/main.go"))
	return registry
}
