package sweep_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/sweep"
	"github.com/longshore/longshore/internal/roottest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an engine with an owner of images, and the sweep over it.
type rig struct {
	t      *testing.T
	node   *enginetest.Node
	engine *engine.Client
	sweep  *sweep.Images
	kept   atomic.Pointer[string] // the name of the image that Keep keeps
	fails  atomic.Bool            // Keep does
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, node: enginetest.Fakes(t)}
	r.node.Start()
	r.engine = r.node.As(core.OwnerSwarm)
	r.sweep = sweep.New(sweep.Options{Engine: r.engine, Logger: slog.New(slog.DiscardHandler), Keep: func(context.Context) (func(core.Image) bool, error) {
		if r.fails.Load() {
			return nil, errors.New("not now")
		}
		return func(img core.Image) bool {
			name := r.kept.Load()
			return name != nil && slices.Contains(img.Names, "docker.io/library/"+*name)
		}, nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.sweep.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// pull makes an image and has the owner pull it.
func (r *rig) pull(name string) core.Image {
	r.t.Helper()
	r.node.Images.Offer(name, imagespec.ImageConfig{}, map[string]string{"name": name})
	img, err := r.engine.Images.Pull(r.t.Context(), name, core.PullOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

func (r *rig) has(name string) bool {
	_, err := r.engine.Images.Get(r.t.Context(), name)
	return err == nil
}

func (r *rig) goes(name string) {
	r.t.Helper()
	roottest.Eventually(r.t, name+" is removed", func() bool { return !r.has(name) })
}

// TestImages: an unused image goes after its delay, and a kept one stays, until it is unused again.
func TestImages(t *testing.T) {
	r := newRig(t)
	forever, later, leased, kept, shown := r.pull("forever:1"), r.pull("later:1"), r.pull("leased:1"), r.pull("kept:1"), r.pull("shown:1")
	lease := r.engine.Images.Lease()
	defer lease.Release()
	if _, err := lease.Image(t.Context(), "leased:1"); err != nil {
		t.Fatal(err)
	}
	name := "kept:1"
	r.kept.Store(&name)
	r.sweep.Unused("", 0)
	r.sweep.Unused(forever.ID, -1)
	r.sweep.Unused(later.ID, time.Hour)
	r.sweep.Unused(leased.ID, 0)
	r.sweep.Unused(kept.ID, 0)
	c := core.Container{Image: r.pull("gone:1").ID}
	c.Config.Images = []core.ImageMount{{Image: shown.ID}}
	r.sweep.Released(c, 0)
	r.goes("gone:1")
	r.goes("shown:1")
	for _, name := range []string{"forever:1", "later:1", "leased:1", "kept:1"} {
		if !r.has(name) {
			t.Errorf("%s was removed", name)
		}
	}
	r.kept.Store(nil)
	r.sweep.Unused(kept.ID, 0)
	r.goes("kept:1")
}

// TestAll: an earlier agent's images are found, unless images stay for ever. An error ends nothing.
func TestAll(t *testing.T) {
	r := newRig(t)
	r.pull("one:1")
	r.sweep.All(t.Context(), -1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.fails.Store(true)
	r.sweep.Unused(r.pull("two:1").ID, 0)
	r.fails.Store(false)
	r.sweep.All(ended, time.Hour) // it may fail
	if !r.has("one:1") {
		t.Error("an image that stays for ever was removed")
	}
	r.sweep.All(t.Context(), 0)
	r.goes("one:1")
	r.goes("two:1")
}
