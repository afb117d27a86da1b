package fleet

import (
	"math"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// The networks that each node has by itself. They are the only ones that a task can be on.
var predefined = map[string]bool{"bridge": true, "host": true}

// predefinedLabel says of a network that each node has it by itself.
const predefinedLabel = "com.docker.swarm.predefined"

// checkNetworks refuses networks that nodes do not have.
func checkNetworks(spec *swarmv1.ServiceSpec) error {
	all := spec.GetTask().GetNetworks()
	for _, n := range all {
		switch {
		case !predefined[n.GetTarget()]:
			return invalid.Errorf("the network %.80q does not exist: a hub creates none, and nodes have bridge and host", n.GetTarget())
		case len(all) > 1:
			return invalid.Errorf("it is on %d networks; only one is possible", len(all))
		case len(n.GetAliases())+len(n.GetAddresses())+len(n.GetDriverAttachmentOpts()) > 0:
			return invalid.Errorf("it has a name, an address or an option on the network %s, which does not support them", n.GetTarget())
		}
	}
	return nil
}

// attachments are the networks of a task as a Swarm's managers tell them.
func attachments(t *swarmv1.TaskSpec) (list []*swarmv1.NetworkAttachment) {
	for _, n := range t.GetNetworks() {
		driver := &swarmv1.Driver{Name: n.GetTarget()}
		list = append(list, &swarmv1.NetworkAttachment{Network: &swarmv1.Network{
			Id:          n.GetTarget(),
			Spec:        &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: n.GetTarget(), Labels: map[string]string{predefinedLabel: "true"}}, DriverConfig: driver},
			DriverState: driver, Ipam: &swarmv1.IPAMOptions{Driver: &swarmv1.Driver{}},
		}})
	}
	return list
}

// checkUpdates refuses updates and rollbacks that could not come to an end.
func checkUpdates(spec *swarmv1.ServiceSpec) error {
	for what, c := range map[string]*swarmv1.UpdateConfig{"update": spec.GetUpdate(), "rollback": spec.GetRollback()} {
		ratio := float64(c.GetMaxFailureRatio())
		switch {
		case math.IsNaN(ratio) || ratio < 0 || ratio > 1:
			return invalid.Errorf("the max_failure_ratio %v of the %s is not between 0 and 1", ratio, what)
		case c.GetParallelism() > maxParallel:
			return invalid.Errorf("%d tasks at a time in the %s, at most %d", c.GetParallelism(), what, maxParallel)
		case !within(c.GetDelay().AsDuration()) || !within(c.GetMonitor().AsDuration()):
			return invalid.Errorf("the delay and the monitor of the %s are from 0 to %s", what, longest)
		}
		if c.GetOrder() != swarmv1.UpdateConfig_START_FIRST || spec.GetGlobal() == nil {
			continue
		}
		for _, p := range spec.GetEndpoint().GetPorts() {
			if p.GetPublishedPort() != 0 {
				return invalid.Errorf("the %s cannot start a task first beside one of the same node that has published the port %d", what, p.GetPublishedPort())
			}
		}
	}
	return nil
}

// longest is the longest delay or monitor of an update.
const longest = 30 * 24 * time.Hour

func within(d time.Duration) bool { return d >= 0 && d <= longest }
