package swarmkit

import (
	"sync"

	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/manager/allocator/networkallocator"
)

// networks are those that the manager can allocate: the nodes' own host and bridge, and overlay
// networks, which have no addresses because no node has the driver. dockerd brings swarmkit's
// managers a provider of its own in the same way.
type networks struct{ networkallocator.InertProvider }

func (networks) PredefinedNetworks() []networkallocator.PredefinedNetworkData {
	return []networkallocator.PredefinedNetworkData{{Name: "host", Driver: "host"}, {Name: "bridge", Driver: "bridge"}}
}
func (networks) ValidateNetworkDriver(*api.Driver) error        { return nil }
func (networks) ValidateIngressNetworkDriver(*api.Driver) error { return nil }

func (networks) NewAllocator(*networkallocator.Config) (networkallocator.NetworkAllocator, error) {
	return &allocator{tasks: map[string]bool{}}, nil
}

// allocator allocates them: it only knows which tasks it has seen.
type allocator struct {
	networkallocator.Inert
	mu    sync.Mutex // guards tasks
	tasks map[string]bool
}

func (*allocator) Allocate(n *api.Network) error {
	n.DriverState = &api.Driver{Name: "overlay"}
	if d := n.Spec.DriverConfig; d != nil && d.Name != "" {
		n.DriverState.Name = d.Name
	}
	return nil
}

func (*allocator) IsAllocated(n *api.Network) bool                              { return n.DriverState != nil }
func (*allocator) AllocateAttachment(*api.Node, *api.NetworkAttachment) error   { return nil }
func (*allocator) IsAttachmentAllocated(*api.Node, *api.NetworkAttachment) bool { return true }
func (*allocator) AllocateService(*api.Service) error                           { return nil }

func (*allocator) IsServiceAllocated(*api.Service, ...func(*networkallocator.ServiceAllocationOpts)) bool {
	return true
}

func (a *allocator) AllocateTask(t *api.Task) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[t.ID] = true
	return nil
}

func (a *allocator) IsTaskAllocated(t *api.Task) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tasks[t.ID]
}

func (a *allocator) DeallocateTask(t *api.Task) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tasks, t.ID)
	return nil
}
