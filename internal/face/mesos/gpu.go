package mesos

import (
	"slices"
	"strings"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// Check refuses names that are none of the Container Device Interface, and one that is
// there twice. InvalidArgument.
func checkGPUs(names []string) error {
	for i, n := range names {
		kind, device, _ := strings.Cut(n, "=")
		vendor, class, _ := strings.Cut(kind, "/")
		if vendor == "" || class == "" || device == "" {
			return invalid.Errorf("GPU %q is not called vendor.com/class=name", n)
		}
		if slices.Contains(names[:i], n) {
			return invalid.Errorf("GPU %q is listed twice", n)
		}
	}
	return nil
}

// Pool are the GPUs of the node.
type gpuPool struct {
	names []string

	mu    sync.Mutex      // guards taken
	taken map[string]bool // by launches, whose containers have no record yet
}

// New returns the pool of the devices with these names.
func newGPUPool(names []string) *gpuPool { return &gpuPool{names: names, taken: map[string]bool{}} }

// Take takes n that no container has. have tells of all containers that may have one;
// it is asked when no other launch takes any. give is to be called when the container
// has its record, or will have none. InvalidArgument when there are not as many.
func (p *gpuPool) take(n int, have func() ([]core.Container, error)) (names []string, give func(), err error) {
	if n == 0 {
		return nil, func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all, err := have()
	if err != nil {
		return nil, nil, err
	}
	used := map[string]bool{}
	for i := range all {
		if all[i].Main.Autopsy == nil {
			for _, name := range all[i].Config.CDI {
				used[name] = true
			}
		}
	}
	free := slices.DeleteFunc(slices.Clone(p.names), func(name string) bool { return used[name] || p.taken[name] })
	if len(free) < n {
		return nil, nil, invalid.Plainf("Requested %d gpus but only %d available", n, len(free))
	}
	names = free[:n]
	for _, name := range names {
		p.taken[name] = true
	}
	return names, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, name := range names {
			delete(p.taken, name)
		}
	}, nil
}
