package translate

import (
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// readDevices finds the devices that the managers have given to the task as generic resources.
func (a *Task) readDevices() error {
	for _, g := range a.Swarm.GetAssignedGenericResources() {
		named := g.GetNamedResourceSpec()
		switch kind, value := named.GetKind(), named.GetValue(); {
		case named == nil:
			return notServed("generic resource %q by number: this node has none", g.GetDiscreteResourceSpec().GetKind())
		case !slices.Contains(a.Node.Devices[kind], value):
			return notServed("generic resource %s=%s: it is not in face.swarm.generic_resources", kind, value)
		case slices.Contains(a.devices, value):
			return invalid.Errorf("generic resource %s=%s is given twice", kind, value)
		default:
			a.devices = append(a.devices, value)
		}
	}
	return nil
}

// Devices are the task's, by their CDI names.
func (a Task) Devices() []string { return a.devices }

// env are the task's variables, and those that name its generic resources, as docker does.
func (a Task) env() []string {
	by := map[string][]string{}
	for _, g := range a.Swarm.GetAssignedGenericResources() {
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
