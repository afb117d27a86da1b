package mesos

import (
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// gpuPool assigns GPUs, which are devices of the Container Device Interface, each to
// one container at a time. The containers' records say which are assigned.
type gpuPool struct {
	names []string

	mu    sync.Mutex      // guards taken
	taken map[string]bool // by launches without a container's record yet
}

// newGPUPool returns the pool of the devices with these names.
func newGPUPool(names []string) *gpuPool { return &gpuPool{names: names, taken: map[string]bool{}} }

// take assigns n free GPUs. have returns all containers that may have one; no other
// launch takes any while it runs. release must be called once the container has its record
// or will not get one. InvalidArgument if fewer than n are free.
func (p *gpuPool) take(n int, have func() ([]core.Container, error)) (names []string, release func(), err error) {
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
