package swarmkit

import (
	"fmt"
	"maps"
	"sync"

	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/manager/allocator/networkallocator"
)

// overlays has the manager allocate overlay networks too: a range, an id of VXLAN, and addresses of tasks and
// nodes in their order. Services have none.
type overlays struct{ networks }

func (overlays) NewAllocator(*networkallocator.Config) (networkallocator.NetworkAllocator, error) {
	return &addresses{allocator: &allocator{tasks: map[string]bool{}}, last: map[string]int{}}, nil
}

type addresses struct {
	*allocator
	mu   sync.Mutex // guards last and nets
	last map[string]int
	nets int
}

func (a *addresses) Allocate(n *api.Network) error {
	err := a.allocator.Allocate(n)
	if err != nil || n.DriverState.Name != "overlay" {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n.DriverState.Options = map[string]string{"com.docker.network.driver.overlay.vxlanid_list": fmt.Sprint(4096 + a.nets)}
	if d := n.Spec.DriverConfig; d != nil {
		maps.Copy(n.DriverState.Options, d.Options)
	}
	n.IPAM = &api.IPAMOptions{Driver: &api.Driver{Name: "default"}, Configs: []*api.IPAMConfig{
		{Family: api.IPAMConfig_IPV4, Subnet: fmt.Sprintf("10.0.%d.0/24", a.nets), Gateway: fmt.Sprintf("10.0.%d.1", a.nets)},
	}}
	a.nets++
	return nil
}

// address gives an attachment one.
func (a *addresses) address(on *api.NetworkAttachment) {
	if d := on.Network.DriverState; len(on.Addresses) > 0 || d == nil || d.Name != "overlay" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var net int
	_, _ = fmt.Sscanf(on.Network.IPAM.Configs[0].Subnet, "10.0.%d.0/24", &net)
	a.last[on.Network.ID]++
	on.Addresses = []string{fmt.Sprintf("10.0.%d.%d/24", net, 1+a.last[on.Network.ID])}
}

func (a *addresses) AllocateAttachment(_ *api.Node, on *api.NetworkAttachment) error {
	a.address(on)
	return nil
}

func (*addresses) IsAttachmentAllocated(_ *api.Node, on *api.NetworkAttachment) bool {
	return len(on.Addresses) > 0
}

func (a *addresses) AllocateTask(t *api.Task) error {
	for _, on := range t.Networks {
		a.address(on)
	}
	return a.allocator.AllocateTask(t)
}
