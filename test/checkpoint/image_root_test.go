package checkpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// crioAnnotation is the annotation of CRI-O's images with a checkpoint.
const crioAnnotation = "io.kubernetes.cri-o.annotations.checkpoint.name"

// counterFile stores a counter in the way of kubelet, removes it, and returns the file and the numbers that it printed.
func counterFile(t *testing.T, b *bed) (file string, numbers int) {
	t.Helper()
	pod := b.RunPod(t, b.PodConfig("was"))
	c := pod.Run(t, counterConfig(b))
	roottest.Eventually(t, "the counter counts", func() bool { return strings.Count(c.ReadLog(t), "\n") > 5 })
	file = filepath.Join(t.TempDir(), "counter.tar")
	if _, err := b.CRI.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: c.ID, Location: file, Timeout: 60}); err != nil {
		t.Fatal(err)
	}
	numbers = strings.Count(c.ReadLog(t), "\n")
	pod.Remove(t)
	return file, numbers
}

// checkpointImage pushes an image with a checkpoint, and has the node pull it. Its layer has the files of the tar, as buildah makes it.
func checkpointImage(t *testing.T, b *bed, tars ...[]byte) string {
	t.Helper()
	ref := imagetest.NewRegistry(t).Push("stored", "1", imagetest.Image{Raw: tars, Annotations: map[string]string{crioAnnotation: "c"}}.Build())
	if _, err := b.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// asImage is the config of a container that names only an image, as that of a pod for a checkpoint does.
func asImage(image string) *runtimeapi.ContainerConfig {
	cfg := nodetest.ContainerConfig("again", image)
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}}
	return cfg
}

// TestAContainerOfACheckpointContinues: CreateContainer with the path of a checkpoint, or with an image that has one, makes a container
// that continues the processes when it is started.
func TestAContainerOfACheckpointContinues(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBedWith(t, "images = true\n")
		file, before := counterFile(t, b)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name, image := range map[string]string{"path": file, "image": checkpointImage(t, b, content)} {
			pod := b.RunPod(t, b.PodConfig(name))
			cfg := asImage(image)
			c := pod.Create(t, cfg)
			if again := pod.Create(t, cfg); again.ID != c.ID {
				t.Errorf("%s: a second call made another container", name)
			}
			if _, err := b.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var first string
			roottest.Eventually(t, name+": the counter goes on", func() bool {
				f := strings.Fields(c.ReadLog(t))
				if len(f) > 3 {
					first = f[3] // time, stream, tag, number
				}
				return first != ""
			})
			if n, err := strconv.Atoi(first); err != nil || n < 5 || n > before+1 {
				t.Errorf("%s: it goes on with %q, %d were printed before", name, first, before)
			}
			if r, err := b.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config}); err == nil && r.GetContainerId() != c.ID {
				t.Errorf("%s: a call after the start made another container", name)
			} // it leaves the one that runs
			out, err := b.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"cat", "/kept"}, Timeout: 60})
			if err != nil || string(out.GetStdout()) != "changed\n" {
				t.Errorf("%s: its file: %v, %q", name, err, out.GetStdout())
			}
			pod.Remove(t)
		}
		b.whole()
	})
}

// TestContainersOfCheckpointsAreRefused makes containers of checkpoints that do not fit. Nothing is left of them.
func TestContainersOfCheckpointsAreRefused(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBedWith(t, "images = true\n")
		file, _ := counterFile(t, b)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		other := asImage(file)
		other.Command = []string{"sh", "-c", "true"}
		user := asImage(file)
		user.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
		plain := filepath.Join(t.TempDir(), "plain.tar")
		if err := os.WriteFile(plain, imagetest.Tar([]imagetest.File{{Name: "file", Body: []byte("x")}}), 0o600); err != nil {
			t.Fatal(err)
		}
		pod := b.RunPod(t, b.PodConfig("is"))
		for name, c := range map[string]struct {
			cfg   *runtimeapi.ContainerConfig
			code  codes.Code
			words string
		}{
			"another command":   {other, codes.FailedPrecondition, "command"},
			"another user":      {user, codes.FailedPrecondition, "run_as_user"},
			"no file":           {asImage("/nowhere.tar"), codes.InvalidArgument, "nowhere"},
			"a directory":       {asImage(t.TempDir()), codes.InvalidArgument, "regular"},
			"another tar":       {asImage(plain), codes.InvalidArgument, "checkpoint"},
			"two layers":        {asImage(checkpointImage(t, b, content, imagetest.Tar([]imagetest.File{{Name: "file"}}))), codes.InvalidArgument, "2 layers"},
			"an ordinary layer": {asImage(checkpointImage(t, b, imagetest.Tar([]imagetest.File{{Name: "file"}}))), codes.InvalidArgument, "checkpoint"},
		} {
			if _, err := b.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: c.cfg, SandboxConfig: pod.Config}); status.Code(err) != c.code || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.words)
			}
		}
		// Without the image of the container its root cannot be made.
		if _, err := b.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: b.image}}); err != nil {
			t.Fatal(err)
		}
		_, err = b.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: asImage(file), SandboxConfig: pod.Config})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), b.image) {
			t.Errorf("without the image: %v", err)
		}
		list, err := b.CRI.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil || len(list.GetContainers()) > 0 {
			t.Errorf("%v, containers are left: %v", err, list)
		}
		pod.Remove(t)
		b.whole()
	})
}

// TestImagesWithCheckpointsNeedPermission: a pod cannot bring the processes of an image that its author stored, unless the operator permits it.
func TestImagesWithCheckpointsNeedPermission(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		image := checkpointImage(t, b, imagetest.Tar([]imagetest.File{{Name: "file"}}))
		pod := b.RunPod(t, b.PodConfig("p"))
		_, err := b.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: asImage(image), SandboxConfig: pod.Config})
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "checkpoint.images") {
			t.Errorf("%v", err)
		}
		pod.Remove(t)
		b.whole()
	})
}

// TestWithoutCRIUContainersOfCheckpointsAreRefused: the error is that of all calls of checkpoints.
func TestWithoutCRIUContainersOfCheckpointsAreRefused(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := nodetest.NewBed(t, nodetest.Options{Config: "[checkpoint]\nprogram = \"/nowhere/criu\"\nimages = true\n"})
		bed := &bed{Bed: b, image: b.Busybox(t)}
		image := checkpointImage(t, bed, imagetest.Tar([]imagetest.File{{Name: "file"}}))
		pod := b.RunPod(t, b.PodConfig("p"))
		for _, ref := range []string{image, "/somewhere.tar"} {
			_, err := b.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: asImage(ref), SandboxConfig: pod.Config})
			if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "no checkpoints") {
				t.Errorf("%s: %v", ref, err)
			}
		}
		pod.Remove(t)
		bed.whole()
	})
}
