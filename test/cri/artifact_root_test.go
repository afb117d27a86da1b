package cri

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const modelType = "application/vnd.cncf.model.manifest.v1+json"

// artifact is one of a small file and one of the given size.
func artifact(size int) imagetest.Built {
	return imagetest.Artifact{Type: modelType, ConfigType: "application/vnd.cncf.model.config.v1+json", Config: []byte("{}"), Files: []imagetest.ArtifactFile{
		{Title: "config.json", MediaType: "application/json", Body: []byte("hello\n")},
		{Path: "weights/model.gguf", MediaType: "application/vnd.cncf.model.weight.v1.raw", Body: bytes.Repeat([]byte("weights\n"), size/8)},
	}}.Build()
}

// TestArtifactVolumes shows artifacts in containers, with and without a user namespace. No container can
// change them.
func TestArtifactVolumes(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		s := &suite{n: n, image: n.Busybox(t), handler: &v1.RuntimeHandler{}}
		ref := imagetest.NewRegistry(t).Push("team/model", "v1", artifact(1<<20))
		pulled, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
		if err != nil {
			t.Fatal(err)
		}
		mount := func(target, sub string) *v1.Mount {
			return &v1.Mount{ContainerPath: target, Readonly: true, Image: &v1.ImageSpec{Image: ref}, ImageSubPath: sub}
		}
		t.Run("shown", func(t *testing.T) {
			st, err := n.Images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
			if err != nil || st.GetImage().GetId() != pulled.GetImageRef() || st.GetImage().GetSize() < 1<<20 || len(st.GetImage().GetRepoDigests()) != 1 {
				t.Errorf("%v, %v", st, err)
			}
			c := s.run(t, func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{mount("/model", ""), mount("/weights", "weights"), mount("/etc/one", "config.json")}
				c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 33}
			})
			s.want(t, c, "cat /model/config.json /etc/one; wc -c < /model/weights/model.gguf; ls /weights; test -x /etc/one || echo not a program",
				"hello\nhello\n1048576\nmodel.gguf\nnot a program")
			if ref := c.Status(t).GetMounts()[0].GetImage().GetImageRef(); ref != pulled.GetImageRef() {
				t.Errorf("image ref %q", ref)
			}
			// kubelet mounts the ID of the pull, compares the status with the list of images to collect unused ones, and asks for the
			// image of the status to show its digest.
			byID := s.run(t, func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{{ContainerPath: "/model", Readonly: true, Image: &v1.ImageSpec{Image: pulled.GetImageRef(), UserSpecifiedImage: ref}}}
			})
			shown := byID.Status(t).GetMounts()[0].GetImage()
			st, err = n.Images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: shown})
			if err != nil || shown.GetImage() != pulled.GetImageRef() || st.GetImage().GetId() != pulled.GetImageRef() {
				t.Errorf("%v, %v, %v", shown, st, err)
			}
			n.Kill()
			n.Up()
			s.want(t, c, "cat /model/config.json", "hello")
		})
		t.Run("attacked", func(t *testing.T) {
			c := s.run(t, func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{mount("/model", ""), mount("/etc/one", "config.json")}
				c.Linux.SecurityContext.Capabilities = &v1.Capability{AddCapabilities: []string{"ALL"}}
			})
			s.sh(t, c, `mount -o remount,bind,rw /model; mount -o remount,rw /model; mount -o remount,bind,rw /etc/one
				for f in /model/config.json /etc/one; do chmod 666 $f; echo bad > $f; rm -f $f; touch $f; done; touch /model/more; true`)
			s.want(t, c, "cat /model/config.json /etc/one; ls /model", "hello\nhello\nconfig.json\nweights")
			if found, err := n.CLI("check", "--images"); err != nil {
				t.Errorf("%s, %v", found, err)
			}
		})
		t.Run("in a user namespace", func(t *testing.T) {
			ids := []*v1.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}}
			userns := &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids, Gids: ids}
			p := s.pod(t, func(c *v1.PodSandboxConfig) {
				c.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: &v1.NamespaceOption{UsernsOptions: userns}}}
			})
			cfg := s.config()
			cfg.Mounts = []*v1.Mount{mount("/model", "")}
			cfg.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{UsernsOptions: userns}}}
			c := p.Run(t, cfg)
			s.want(t, c, "stat -c %u /model/config.json; cat /model/config.json", "0\nhello")
		})
		t.Run("no root", func(t *testing.T) {
			p := s.pod(t)
			cfg := s.config()
			cfg.Image = &v1.ImageSpec{Image: ref}
			_, err := n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "it is an artifact ("+modelType+")") {
				t.Errorf("%v", err)
			}
		})
		t.Run("removed while it is used", func(t *testing.T) {
			c := s.run(t, func(c *v1.ContainerConfig) { c.Mounts = []*v1.Mount{mount("/model", "")} })
			if _, err := n.Images.RemoveImage(t.Context(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
			s.want(t, c, "cat /model/config.json", "hello")
		})
		n.Check()
	})
}

// TestArtifactMountReadsNoContent: the agent reads as much for the mount of a large artifact as for that of a small one.
func TestArtifactMountReadsNoContent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		s := &suite{n: n, image: n.Busybox(t), handler: &v1.RuntimeHandler{}}
		reg := imagetest.NewRegistry(t)
		const large = 256 << 20
		var read []int64
		for _, size := range []int{1 << 10, large} {
			ref := reg.Push("team/model", fmt.Sprint(size), artifact(size))
			if _, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
			before := bytesRead(t, n)
			c := s.run(t, func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{{ContainerPath: "/model", Readonly: true, Image: &v1.ImageSpec{Image: ref}}}
			})
			read = append(read, bytesRead(t, n)-before)
			s.want(t, c, "wc -c < /model/weights/model.gguf", fmt.Sprint(size))
		}
		if read[1] > read[0]+1<<20 {
			t.Errorf("%d bytes read for %d more", read, large)
		}
		usage, err := n.Images.ImageFsInfo(t.Context(), &v1.ImageFsInfoRequest{})
		if err != nil || usage.GetImageFilesystems()[0].GetUsedBytes().GetValue() > large+64<<20 {
			t.Errorf("%v, %v: more than one copy", usage, err)
		}
		n.Check()
	})
}

// bytesRead is how much the agent has read from files, sockets and pipes.
func bytesRead(t *testing.T, n *nodetest.Node) (sum int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}
