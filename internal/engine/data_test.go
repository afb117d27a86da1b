package engine_test

import (
	"context"
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// counted counts writes.
type counted struct {
	core.Store
	writes int
}

func (c *counted) Update(fn func(core.Tx) error) error {
	c.writes++
	return c.Store.Update(fn)
}

// TestAContainersDataIsWrittenWithIt: the data from the spec function is stored with the container
// and costs no further write: one reserves, one commits, and one before the launch stores
// recovery's data about a container that is started at once.
func TestAContainersDataIsWrittenWithIt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		run    bool
		found  []byte
		want   string
		writes int
	}{
		{"created", false, []byte("found"), "found", 2},
		{"run", true, []byte("found"), "found", 3},
		{"nothing found", false, nil, "asked", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := enginetest.Fakes(t)
			store := &counted{Store: n.Options.Store}
			n.Options.Store = store
			img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
			n.Start()
			sb := n.Pod(core.OwnerCRI, "pod")
			before := store.writes
			c, err := n.As(core.OwnerCRI).CreateContainer(t.Context(), core.ContainerConfig{
				Key: "c", Data: []byte("asked"), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Run: tc.run,
				Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
					return &specs.Spec{Process: &specs.Process{Args: []string{"sleep"}}}, slices.Clone(tc.found), nil
				},
			})
			if err != nil || string(c.Data) != tc.want || store.writes-before != tc.writes {
				t.Errorf("data %q, %d writes, %v", c.Data, store.writes-before, err)
			}
			on, err := n.As(core.OwnerCRI).Container(t.Context(), c.ID)
			if err != nil || string(on.Data) != tc.want {
				t.Errorf("on record: %q, %v", on.Data, err)
			}
			sweep(t, n)
		})
	}
}
