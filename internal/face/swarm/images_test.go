package swarm_test

import (
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// hasImage reports whether the face has an image of a name.
func (r *rig) hasImage(name string) bool {
	_, err := r.As(core.OwnerSwarm).Images.Get(r.t.Context(), name)
	return err == nil
}

func (r *rig) imageGoes(name string) {
	r.t.Helper()
	roottest.Eventually(r.t, name+" is removed", func() bool { return !r.hasImage(name) })
}

// TestImagesThatNoTaskUsesGo: an image goes with the last task that names it, whether that
// has a container or not, and one of an earlier agent when the next one finds it.
func TestImagesThatNoTaskUsesGo(t *testing.T) {
	cfg := swarm.DefaultConfig()
	cfg.ImageDelay = 0
	r := newRigWith(t, cfg)
	r.join()
	r.runs("a")
	r.runs("b")
	// It pulls its image, and then has no container.
	const other = "other:1"
	r.Images.Offer(other, imagespec.ImageConfig{}, map[string]string{"other": ""})
	rejected := swarmtest.Task("c", other, "sleep")
	rejected.GetSpec().GetContainer().User = "nobody-has-this-name"
	r.Assign(rejected)
	r.Reaches("c", swarmv1.TaskState_REJECTED)

	r.Remove("a")
	r.gone("a")
	if !r.hasImage(image) {
		t.Error("the image of a task that runs was removed")
	}
	b := r.container("b")
	r.Want("b", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("b", swarmv1.TaskState_SHUTDOWN)
	if err := r.As(core.OwnerSwarm).RemoveContainer(t.Context(), b.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	const left = "left:1" // by an earlier agent
	r.Images.Offer(left, imagespec.ImageConfig{}, map[string]string{"left": ""})
	if _, err := r.As(core.OwnerSwarm).Images.Pull(t.Context(), left, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	r.down()
	r.start()
	r.imageGoes(left)
	for _, name := range []string{image, other} {
		if !r.hasImage(name) {
			t.Errorf("%s was removed, which a task of the node names", name)
		}
	}
	r.Remove("b")
	r.imageGoes(image)
	r.Remove("c")
	r.imageGoes(other)
}
