package nodetest

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// Applets are the programs in /bin of the tests' busybox image.
var Applets = []string{
	"sh", "cat", "echo", "sleep", "true", "false", "ls", "id", "env", "touch", "mkdir", "rm", "cp", "mount", "stat", "grep", "head", "tail", "tr", "wc", "hostname",
	"ip", "nc", "wget", "ping", "ps", "kill", "dd", "seq", "date", "sync", "stty", "tty", "df", "readlink", "printf", "sha256sum", "yes", "httpd", "nslookup",
}

// BusyboxImage is the image of the tests.
func BusyboxImage() (imagetest.Built, error) {
	files, err := imagetest.Busybox("/bin/busybox", Applets...)
	if err != nil {
		return imagetest.Built{}, err
	}
	return imagetest.Image{
		Layers: [][]imagetest.File{files},
		Config: ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}},
	}.Build(), nil
}

// Busybox serves the busybox image from a registry on loopback, has the node
// pull it over CRI, and returns its name.
func (n *Node) Busybox(t *testing.T) string {
	t.Helper()
	built, err := BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatalf("PullImage %s: %v", ref, err)
	}
	return ref
}
