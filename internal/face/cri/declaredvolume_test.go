package cri

import (
	"slices"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestDeclaredVolumesAreMountsToo: the status lists the image's volumes beside the request's
// mounts, and they are writable below a read-only root.
func TestDeclaredVolumesAreMountsToo(t *testing.T) {
	n := newTestNode(t)
	n.AddImage("db", imagespec.ImageConfig{Cmd: []string{"serve"}, Volumes: map[string]struct{}{"/data": {}, "/asked": {}}}, map[string]string{"data/content": "text"})
	pod := n.pod(t, "p")
	for name, readOnly := range map[string]bool{"writable": false, "read-only": true} {
		t.Run(name, func(t *testing.T) {
			req := n.containerRequest(pod, name, "serve")
			req.Config.Image.Image = "db"
			req.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{ReadonlyRootfs: readOnly}}
			req.Config.Mounts = []*v1.Mount{{ContainerPath: "/asked", HostPath: t.TempDir()}}
			made, err := n.CreateContainer(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			mounts := n.status(t, made.GetContainerId()).GetMounts()
			if len(mounts) != 2 || mounts[0].GetContainerPath() != "/asked" || mounts[1].GetContainerPath() != "/data" || mounts[1].GetHostPath() == "" || mounts[1].GetReadonly() {
				t.Errorf("status %v", mounts)
			}
			spec := n.Runtime.Spec(core.ID(made.GetContainerId()))
			i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/data" })
			if readOnly != (i >= 0) || i >= 0 && (spec.Mounts[i].Source != mounts[1].GetHostPath() || !slices.Contains(spec.Mounts[i].Options, "rw")) {
				t.Errorf("mounts %+v", spec.Mounts)
			}
			again, err := n.CreateContainer(t.Context(), req)
			if err != nil || again.GetContainerId() != made.GetContainerId() {
				t.Errorf("a retry makes %v, %v", again, err)
			}
		})
	}
}
