package nomad

import (
	"context"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// fakeSandboxes has the engine's sandboxes.
type fakeSandboxes struct {
	mu   sync.Mutex
	list []core.Sandbox
}

func (t *fakeSandboxes) Sandboxes(context.Context, core.Filter) ([]core.Sandbox, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list, nil
}

func (t *fakeSandboxes) add(first, size uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, core.Sandbox{Config: core.SandboxConfig{UIDs: []specs.LinuxIDMapping{{HostID: first, Size: size}}}})
}

func TestARangeIsOneTasksAlone(t *testing.T) {
	have := &fakeSandboxes{}
	have.add(200000, 1) // in the second range, given by another configuration
	r := newUserRanges(have)
	conf := plugin.Users{First: 100000, Ranges: 3}
	a, releaseA, err := r.take(t.Context(), conf)
	if err != nil || a != 100000 {
		t.Fatalf("the first is %d, %v", a, err)
	}
	b, releaseB, err := r.take(t.Context(), conf)
	if err != nil || b != 100000+2*plugin.UsersRange {
		t.Fatalf("the second is %d, %v", b, err)
	}
	if c, _, err := r.take(t.Context(), conf); !errdefs.IsUnavailable(err) {
		t.Fatalf("a third is %d, %v", c, err)
	}
	have.add(a, plugin.UsersRange)
	releaseA() // a has its sandbox now
	releaseB() // b's has failed
	if c, _, err := r.take(t.Context(), conf); err != nil || c != b {
		t.Fatalf("after a start that failed: %d, %v", c, err)
	}
}

func TestManyTakeAtOnce(t *testing.T) {
	have := &fakeSandboxes{}
	r := newUserRanges(have)
	const n = 50
	var mu sync.Mutex
	seen := map[uint32]bool{}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			first, release, err := r.take(t.Context(), plugin.Users{First: 65536, Ranges: n})
			if err != nil {
				t.Error(err)
				return
			}
			have.add(first, plugin.UsersRange)
			release()
			mu.Lock()
			defer mu.Unlock()
			if seen[first] {
				t.Errorf("%d is two tasks'", first)
			}
			seen[first] = true
		})
	}
	wg.Wait()
}
