package translate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// readDevices finds the devices that the managers have given to the task as generic resources. The
// managers count numbered resources; the node only has to have as many.
func (a *Task) readDevices() error {
	for _, g := range a.Swarm.GetAssignedGenericResources() {
		if n := g.GetDiscreteResourceSpec(); n != nil {
			if err := a.Node.hasCount(n.GetKind(), n.GetValue()); err != nil {
				return err
			}
			continue
		}
		switch kind, value := g.GetNamedResourceSpec().GetKind(), g.GetNamedResourceSpec().GetValue(); {
		case !slices.Contains(a.Node.Devices[kind], value):
			return notServed("generic resource %s=%s: it is not in face.swarm.generic_resources", kind, value)
		case slices.Contains(a.devices, value):
			return invalid.Errorf("generic resource %s=%s is assigned twice", kind, value)
		default:
			a.devices = append(a.devices, value)
		}
	}
	return nil
}

// hasCount refuses a number of a generic resource that the node has not.
func (n Node) hasCount(kind string, value int64) error {
	switch has := n.Counts[kind]; {
	case len(n.Devices[kind]) > 0:
		return notServed("generic resource %s=%d by number: this node has devices of it, by their names", kind, value)
	case has == 0:
		return notServed("generic resource %s=%d: it is not in face.swarm.generic_counts", kind, value)
	case value < 1 || value > has:
		return notServed("generic resource %s=%d: this node has %d", kind, value, has)
	}
	return nil
}

// Devices are the task's, by their CDI names.
func (a Task) Devices() []string { return a.devices }

// env are the task's variables, and those that name its generic resources, as docker does.
func (a Task) env() []string {
	by := map[string][]string{}
	for _, g := range a.Swarm.GetAssignedGenericResources() {
		if n := g.GetDiscreteResourceSpec(); n != nil {
			by[n.GetKind()] = append(by[n.GetKind()], strconv.FormatInt(n.GetValue(), 10))
			continue
		}
		named := g.GetNamedResourceSpec()
		by[named.GetKind()] = append(by[named.GetKind()], named.GetValue())
	}
	var given []string
	for kind, values := range by {
		given = append(given, "DOCKER_RESOURCE_"+strings.ToUpper(kind)+"="+strings.Join(values, ","))
	}
	slices.Sort(given)
	return append(slices.Clone(a.spec.GetEnv()), given...)
}
