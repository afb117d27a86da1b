package checkpoint

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/checkpoint/archive"
	"github.com/longshore/longshore/internal/roottest"
)

// TestKubeletsCheckpoint stores a container of a pod in the way of kubelet's endpoint.
func TestKubeletsCheckpoint(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		ctx := t.Context()
		logs := t.TempDir()
		config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"}, LogDirectory: logs}
		pod, err := b.CRI.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		made, err := b.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: b.image}, Command: []string{"sh", "-c", counter}, LogPath: "c.log",
		}})
		if err != nil {
			t.Fatal(err)
		}
		id := made.GetContainerId()
		if _, err := b.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "checkpoint.tar")
		for location, code := range map[string]codes.Code{"relative.tar": codes.InvalidArgument, file: codes.OK} {
			if _, err := b.CRI.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location, Timeout: 60}); status.Code(err) != code {
				t.Errorf("%s: %v", location, err)
			}
		}
		if _, err := b.CRI.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: "nobody", Location: file}); status.Code(err) != codes.NotFound {
			t.Errorf("of nobody: %v", err)
		}
		st, err := b.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil || st.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("afterwards: %v, %v", st, err)
		}
		names := namesIn(t, file)
		for _, want := range []string{archive.Config, archive.Spec, archive.Root, archive.Stats, "checkpoint/inventory.img", "checkpoint/pstree.img"} {
			if !slices.Contains(names, want) {
				t.Errorf("no %s among %v", want, names)
			}
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		b.shows(file)
		b.whole()
	})
}

func namesIn(t *testing.T, file string) (names []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
