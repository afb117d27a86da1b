package nodetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
)

// Ryuk is the repository of the image of testcontainers' reaper, and RyukTag its tag.
const (
	Ryuk    = "testcontainers/ryuk"
	RyukTag = "0.14.0"
)

// RyukImage builds the stand-in for testcontainers' reaper from its source file, test/e2e/dockerclients/ryuk/main.go.
func RyukImage(t *testing.T, source string) imagetest.Built {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ryuk")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the reaper: %v\n%s", err, out)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	image := imagetest.Image{Layers: [][]imagetest.File{{{Name: "ryuk", Body: body, Mode: 0o755}}}}
	image.Config.Cmd = []string{"/ryuk"}
	image.Config.Labels = map[string]string{"org.testcontainers.ryuk": "true"}
	return image.Build()
}

// DockerNode is a node with Docker's API at two sockets. Hub has busybox, under Docker Hub's name.
type DockerNode struct {
	*Node
	Socket, ReadSocket string
	Hub                *imagetest.Registry
}

// StartDocker starts a node with Docker's API, and sets HOME and DOCKER_HOST for the test's clients.
func StartDocker(t *testing.T) DockerNode {
	t.Helper()
	busybox, err := BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	Bridge(t, "clients0", "10.96.0.1/24")
	dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := DockerNode{Socket: dir + "/docker.sock", ReadSocket: dir + "/read.sock", Hub: imagetest.NewRegistry(t)}
	n.Hub.Push("library/busybox", "latest", busybox)
	if err = os.MkdirAll(dir+"/certs/docker.io", 0o755); err == nil {
		err = os.WriteFile(dir+"/certs/docker.io/hosts.toml", fmt.Appendf(nil, "server = \"http://%s\"\n", n.Hub.Host), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Node = Start(t, Options{Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.docker]\nenabled = true\nsocket = %q\nread_socket = %q\n",
		dir+"/certs", n.Socket, n.ReadSocket)})
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_HOST", "unix://"+n.Socket)
	return n
}
