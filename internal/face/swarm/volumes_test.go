package swarm_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/csi/csitest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// withDriver is a member with a driver of cluster volumes.
func withDriver(t *testing.T) (*rig, *csitest.Driver) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := csitest.New(t, dir)
	d.Secret = map[string]string{"key": "planted-secret"}
	r := newRig(t)
	r.down()
	r.config.CSI = map[string]string{"test": d.Socket}
	r.start()
	r.join()
	return r, d
}

// clusterVolume is one with a secret.
func clusterVolume(id string) *swarmv1.VolumeAssignment {
	return &swarmv1.VolumeAssignment{
		Id: id, VolumeId: "of-" + id, Driver: &swarmv1.Driver{Name: "test"}, Secrets: []*swarmv1.VolumeSecret{{Key: "key", Secret: "s"}},
		AccessMode: &swarmv1.VolumeAccessMode{AccessType: &swarmv1.VolumeAccessMode_Mount{Mount: &swarmv1.VolumeAccessMode_MountVolume{}}},
	}
}

// mounting is a task that mounts a cluster volume.
func mounting(id, volume string) *swarmv1.Task {
	task := swarmtest.Task(id, image, "sleep")
	task.Volumes = []*swarmv1.VolumeAttachment{{Id: volume, Source: "data", Target: "/data"}}
	task.GetSpec().GetContainer().Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_CLUSTER, Source: "data", Target: "/data"}}
	return task
}

func (r *rig) giveSecret() {
	r.Change(func(_ map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("planted-secret")}}
	})
}

func called(d *csitest.Driver, call string) bool { return slices.Contains(d.Calls(), call) }

// TestClusterVolumes: the node says that it has the driver; a task waits for its volume,
// says so, and mounts it; the managers get it back when no task can mount it.
func TestClusterVolumes(t *testing.T) {
	r, d := withDriver(t)
	if info := r.Described().GetCsiInfo(); len(info) != 1 || info[0].GetPluginName() != "test" || info[0].GetNodeId() != "here" {
		t.Errorf("described as %v", info)
	}
	r.Assign(mounting("a", "v"))
	r.says("a", "it was not assigned to the node yet")
	r.Publish(clusterVolume("v"))
	r.says("a", "a secret of it was not assigned")
	r.giveSecret()
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.rises("a", swarmv1.TaskState_RUNNING)
	want := filepath.Join(r.state, "volumes", "v", "published")
	if m := r.mount("a", "/data"); m.Source != want || m.Type != "bind" || slices.Contains(m.Options, "ro") {
		t.Errorf("its mount: %+v, want %s", m, want)
	}

	r.Unpublish("v")
	r.Assign(mounting("b", "v"))
	r.says("b", "it is being removed")
	if called(d, "NodeUnpublishVolume of-v") {
		t.Error("it was unpublished under a task")
	}
	r.Remove("b")
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Until("the volume is given back", func() bool { return r.Unpublished("v") == 1 })
	if held := d.Holds(); len(held) > 0 {
		t.Errorf("the driver holds %v", held)
	}
	for key, value := range r.kv.All("") {
		if strings.Contains(string(value), "planted-secret") {
			t.Errorf("%s has the secret", key)
		}
	}
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// mount is one of a task's container.
func (r *rig) mount(task, target string) (found specs.Mount) {
	r.t.Helper()
	for _, m := range r.Runtime.Spec(r.container(task).ID).Mounts {
		if m.Destination == target {
			return m
		}
	}
	r.t.Errorf("task %s has no mount at %s", task, target)
	return found
}

// says waits until a task's status tells something.
func (r *rig) says(id, text string) {
	r.t.Helper()
	r.Until(id+" says: "+text, func() bool {
		for _, s := range r.Statuses(id) {
			if strings.Contains(s.GetMessage(), text) {
				return true
			}
		}
		return false
	})
}

// TestADriverThatHangs keeps no other task waiting, nor the volumes of another driver's.
func TestADriverThatHangs(t *testing.T) {
	r, d := withDriver(t)
	d.Hook(func(ctx context.Context, call string) error {
		if call != "NodeStageVolume of-hangs" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	r.giveSecret()
	r.Publish(clusterVolume("hangs"))
	r.Publish(clusterVolume("v"))
	r.Assign(mounting("waits", "hangs"))
	r.Assign(mounting("a", "v"))
	r.Assign(swarmtest.Task("b", image, "well"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Reaches("b", swarmv1.TaskState_COMPLETE)
	r.says("waits", "its driver makes it ready")
	r.Remove("waits")
	r.Unpublish("hangs")
	r.Until("what hung is given back", func() bool { return r.Unpublished("hangs") == 1 })
}

// TestAnAgentsDeathWithVolumes: the task runs on, its volume stays, and the next agent returns it.
func TestAnAgentsDeathWithVolumes(t *testing.T) {
	r, d := withDriver(t)
	r.giveSecret()
	r.Publish(clusterVolume("v"))
	r.Assign(mounting("a", "v"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	pid := r.container("a").Main.Pid
	r.down()
	r.Forget()
	r.Unpublish("v") // a manager that forces it
	r.start()
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if c := r.container("a"); c.Main.Pid != pid || called(d, "NodeUnpublishVolume of-v") {
		t.Errorf("pid %d, then %d; %v", pid, c.Main.Pid, d.Calls())
	}
	r.Remove("a")
	r.Until("it is given back", func() bool { return r.Unpublished("v") == 1 })
}

// TestVolumesThatCannotBe are rejected, one by one, and leave nothing.
func TestVolumesThatCannotBe(t *testing.T) {
	r, d := withDriver(t)
	block := clusterVolume("block")
	block.AccessMode.AccessType = &swarmv1.VolumeAccessMode_Block{Block: &swarmv1.VolumeAccessMode_BlockVolume{}}
	r.Publish(block)
	for id, c := range map[string]struct {
		task *swarmv1.Task
		text string
	}{
		"device":  {mounting("device", "block"), "block devices"},
		"escapes": {mounting("escapes", "../../etc"), "that is no id"},
		"nothing": {func() *swarmv1.Task {
			task := mounting("nothing", "v")
			task.Volumes = nil
			return task
		}(), "chosen no cluster volume"},
	} {
		r.Assign(c.task)
		if s := r.Reaches(id, swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), c.text) {
			t.Errorf("%s: %q", id, s.GetErr())
		}
	}
	if called(d, "NodeStageVolume of-block") {
		t.Error("the driver was asked")
	}
}

// TestLeavingWithVolumes returns them all; one that a driver keeps fails it, and leaving again
// continues.
func TestLeavingWithVolumes(t *testing.T) {
	r, d := withDriver(t)
	r.giveSecret()
	r.Publish(clusterVolume("v"))
	r.Assign(mounting("a", "v"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	d.Hook(func(_ context.Context, call string) error {
		if call == "NodeUnstageVolume of-v" {
			return status.Error(codes.Internal, "not now")
		}
		return nil
	})
	if err := r.face.Leave(t.Context()); err == nil || !strings.Contains(err.Error(), "cluster volume v: CSI driver test: NodeUnstageVolume: Internal: not now") {
		t.Errorf("leave: %v", err)
	}
	d.Hook(nil)
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held := d.Holds(); len(held) > 0 {
		t.Errorf("the driver holds %v", held)
	}
	if _, err := r.As(core.OwnerSwarm).ContainerByKey(t.Context(), "a"); err == nil {
		t.Error("the task is there")
	}
	r.clean()
}
