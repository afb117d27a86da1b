package swarmkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/swarmkit/v2/api"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/face/swarm/csi/csitest"
)

// TestClusterVolumes: a volume is made by its driver's controller, published to the node,
// mounted by the tasks that ask for it, and goes the way back when it is drained.
func TestClusterVolumes(t *testing.T) {
	beside(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "csi") // a socket's path is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		d := csitest.New(t, dir)
		d.Secret = map[string]string{"key": "planted-secret"}
		d.Mount = func(source, target string, readOnly bool) error {
			if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil || !readOnly {
				return err
			}
			return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
		d.Unmount = func(target string) error { return unix.Unmount(target, 0) }
		r := newRig(t, options{drivers: plugins{"test": d.Socket}})
		r.until("the manager knows the driver of the node", func() bool {
			info := r.self().Description.CSIInfo
			return len(info) == 1 && info[0].PluginName == "test" && info[0].NodeID == "here"
		})
		secret, err := r.CreateSecret(t.Context(), &api.CreateSecretRequest{Spec: &api.SecretSpec{Annotations: api.Annotations{Name: "key"}, Data: []byte("planted-secret")}})
		if err != nil {
			t.Fatal(err)
		}
		spec := &api.VolumeSpec{
			Annotations: api.Annotations{Name: "data"}, Driver: &api.Driver{Name: "test"}, Secrets: []*api.VolumeSecret{{Key: "key", Secret: secret.Secret.ID}},
			AccessMode: &api.VolumeAccessMode{Scope: api.VolumeScopeMultiNode, Sharing: api.VolumeSharingAll, AccessType: &api.VolumeAccessMode_Mount{Mount: &api.VolumeAccessMode_MountVolume{}}},
		}
		made, err := r.CreateVolume(t.Context(), &api.CreateVolumeRequest{Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		id := made.Volume.ID
		volume := func() *api.Volume {
			resp, err := r.GetVolume(t.Context(), &api.GetVolumeRequest{VolumeID: id})
			if err != nil {
				t.Fatal(err)
			}
			return resp.Volume
		}
		r.until("the volume is made", func() bool { return volume().VolumeInfo != nil && volume().VolumeInfo.VolumeID != "" })

		mounts := func(_ *api.ServiceSpec, c *api.ContainerSpec) {
			c.Mounts = []api.Mount{{Type: api.MountTypeCluster, Source: "data", Target: "/data"}}
		}
		writer := r.create("writer", 2, mounts, "sh", "-c", "echo x >>/data/lines; exec sleep 1000")
		r.in(writer, api.TaskStateRunning, 2)
		lines := filepath.Join(d.Volume("of-data"), "lines")
		r.until("both have written into the volume", func() bool {
			text, err := os.ReadFile(lines)
			return err == nil && string(text) == "x\nx\n"
		})
		before := r.pids()
		r.node.Kill()
		r.node.Up()
		r.until("the agent has a session again", func() bool { return r.status().Session == "up" })
		if now := r.pids(); len(now) != 2 || len(before) != 2 {
			t.Errorf("the agent's death was noticed: %v, then %v", before, now)
		}

		// It goes the whole way back: unpublished, unstaged, told, detached, deleted.
		r.removeService(writer)
		r.until("the service is gone", func() bool { return len(r.pids()) == 0 })
		r.until("the volume is drained", func() bool {
			v := volume()
			v.Spec.Availability = api.VolumeAvailabilityDrain
			_, err := r.UpdateVolume(t.Context(), &api.UpdateVolumeRequest{VolumeID: id, VolumeVersion: &v.Meta.Version, Spec: &v.Spec})
			return err == nil
		})
		r.until("the node has given it back", func() bool { return len(volume().PublishStatus) == 0 && len(d.Holds()) == 0 })
		if _, err := r.RemoveVolume(t.Context(), &api.RemoveVolumeRequest{VolumeID: id}); err != nil {
			t.Fatal(err)
		}
		r.until("its driver has deleted it", func() bool {
			_, err := os.Stat(d.Volume("of-data"))
			return os.IsNotExist(err)
		})
		if left, err := os.ReadDir(filepath.Join(r.node.State, "swarm", "volumes")); err != nil && !os.IsNotExist(err) || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		r.node.Check()
	})
}
