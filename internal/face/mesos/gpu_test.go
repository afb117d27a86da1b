package mesos

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// TestTakeGPUs: each GPU is one container's until its end.
func TestTakeGPUs(t *testing.T) {
	p := newGPUPool([]string{"v.com/gpu=0", "v.com/gpu=1", "v.com/gpu=2"})
	var all []core.Container
	have := func() ([]core.Container, error) { return all, nil }
	take := func(n int, want ...string) func() {
		t.Helper()
		names, give, err := p.take(n, have)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%d: %q, %v, want %q", n, names, err, want)
		}
		return give
	}
	refuse := func(n int, want string) {
		t.Helper()
		if _, _, err := p.take(n, have); err == nil || err.Error() != want || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
	}
	refuse(4, "Requested 4 gpus but only 3 available")
	release := take(2, "v.com/gpu=0", "v.com/gpu=1")
	refuse(2, "Requested 2 gpus but only 1 available")
	all = append(all, core.Container{Config: core.ContainerConfig{CDI: []string{"v.com/gpu=0", "v.com/gpu=1"}}})
	release()
	take(1, "v.com/gpu=2")()
	refuse(2, "Requested 2 gpus but only 1 available")
	all[0].Main.Autopsy = &core.Autopsy{}
	take(3, "v.com/gpu=0", "v.com/gpu=1", "v.com/gpu=2")()
	take(0)()
	broken := errors.New("broken")
	if _, _, err := p.take(1, func() ([]core.Container, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
