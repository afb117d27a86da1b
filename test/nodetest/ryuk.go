package nodetest

import (
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
