package fleet

import (
	"fmt"
	"maps"
	"strings"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// available reports whether a node may keep its tasks.
func available(n *swarmv1.Node) bool {
	return n.GetSpec().GetAvailability() != swarmv1.NodeSpec_DRAIN
}

// room is the free capacity of a node.
type room struct {
	id      string
	tasks   int
	of      map[string]int  // tasks, by service; nil for a node without tasks; a large fleet may have many
	cpus    int64           // in billionths
	memory  int64           // in bytes
	limited bool            // the node has said how much it has
	ports   map[string]bool // nil while none is published
	node    *swarmv1.Node
}

func newRoom(n *swarmv1.Node) *room {
	r := n.GetDescription().GetResources()
	return &room{id: n.GetId(), cpus: r.GetNanoCpus(), memory: r.GetMemoryBytes(), limited: r != nil, node: n}
}

// take counts a task in.
func (r *room) take(t *swarmv1.Task) {
	r.tasks++
	if r.of == nil {
		r.of = map[string]int{}
	}
	r.of[t.GetServiceId()]++
	r.cpus -= t.GetSpec().GetResources().GetReservations().GetNanoCpus()
	r.memory -= t.GetSpec().GetResources().GetReservations().GetMemoryBytes()
	for _, p := range t.GetEndpoint().GetPorts() {
		if p.GetPublishedPort() != 0 {
			if r.ports == nil {
				r.ports = map[string]bool{}
			}
			r.ports[portName(p)] = true
		}
	}
}

// without is the room that there is when some tasks have gone.
func (r *room) without(tasks []inventory.Task) *room {
	left := *r
	left.of, left.ports = maps.Clone(r.of), maps.Clone(r.ports)
	for _, t := range tasks {
		left.tasks--
		if left.of != nil {
			left.of[t.M.GetServiceId()]--
		}
		left.cpus += t.M.GetSpec().GetResources().GetReservations().GetNanoCpus()
		left.memory += t.M.GetSpec().GetResources().GetReservations().GetMemoryBytes()
		for _, p := range t.M.GetEndpoint().GetPorts() {
			delete(left.ports, portName(p))
		}
	}
	return &left
}

// has reports whether there is room for another task of a service, and its drivers.
func (r *room) has(s *swarmv1.Service) bool { return r.lacks(s) == "" }

// lacks returns why there is no room for another task of a service, or "".
func (r *room) lacks(s *swarmv1.Service) string {
	want := s.GetSpec().GetTask().GetResources().GetReservations()
	switch limit := s.GetSpec().GetTask().GetPlacement().GetMaxReplicas(); {
	case r.limited && want.GetNanoCpus() > 0 && want.GetNanoCpus() > r.cpus:
		return "insufficient resources, CPUs"
	case r.limited && want.GetMemoryBytes() > 0 && want.GetMemoryBytes() > r.memory:
		return "insufficient resources, memory"
	case limit > 0 && uint64(r.of[s.GetId()]) >= limit:
		return "max replicas per node limit exceeded"
	}
	for _, p := range s.GetSpec().GetEndpoint().GetPorts() {
		if r.ports[portName(p)] {
			return "host-mode port " + strings.ToLower(portName(p)) + " already in use"
		}
	}
	if !drives(r.node, s.GetSpec().GetTask()) {
		return "missing plugin"
	}
	return ""
}

func portName(p *swarmv1.PortConfig) string {
	return fmt.Sprintf("%d/%s", p.GetPublishedPort(), p.GetProtocol())
}

// constraint is one condition on a node: KEY==VALUE or KEY!=VALUE.
type constraint struct {
	key, value string
	not        bool
}

// parseConstraint reads one. Spaces around its parts do not count.
func parseConstraint(text string) (constraint, error) {
	for _, op := range []string{"==", "!="} {
		key, value, ok := strings.Cut(text, op)
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if ok && value != "" && known(key) {
			return constraint{key, value, op == "!="}, nil
		}
	}
	return constraint{}, fmt.Errorf("the constraint %q is not of the form KEY==VALUE or KEY!=VALUE with node.id, node.hostname, node.role, node.platform.os, node.platform.arch, node.labels.NAME or engine.labels.NAME", text)
}

// The prefixes of labels in constraints.
const (
	nodeLabels   = "node.labels."
	engineLabels = "engine.labels."
)

func known(key string) bool {
	switch key {
	case "node.id", "node.hostname", "node.role", "node.platform.os", "node.platform.arch":
		return true
	}
	return len(key) > len(nodeLabels) && strings.HasPrefix(key, nodeLabels) || len(key) > len(engineLabels) && strings.HasPrefix(key, engineLabels)
}

// holds reports whether a node fulfils it. As in a Swarm, a value is compared without regard to
// case, and a label that a node does not have is the empty one.
func (c constraint) holds(n *swarmv1.Node) bool {
	d := n.GetDescription()
	var value string
	switch c.key {
	case "node.id":
		value = n.GetId()
	case "node.hostname":
		value = d.GetHostname()
	case "node.role":
		value = strings.ToLower(n.GetRole().String())
	case "node.platform.os":
		value = d.GetPlatform().GetOs()
	case "node.platform.arch":
		value = d.GetPlatform().GetArchitecture()
	default:
		if name, ok := strings.CutPrefix(c.key, nodeLabels); ok {
			value = n.GetSpec().GetAnnotations().GetLabels()[name]
		} else {
			value = d.GetEngine().GetLabels()[strings.TrimPrefix(c.key, engineLabels)]
		}
	}
	return strings.EqualFold(value, c.value) != c.not
}

// drives reports whether a node lists the drivers that a task names: of its networks, its volumes and its log. As in a
// Swarm, a node without an engine lists none and is not asked, and one that lists no log drivers is not asked for those.
func drives(n *swarmv1.Node, t *swarmv1.TaskSpec) bool {
	if n.GetDescription().GetEngine() == nil {
		return true
	}
	listed, logs := map[string]bool{}, false
	for _, p := range n.GetDescription().GetEngine().GetPlugins() {
		listed[p.GetType()+"/"+strings.TrimSuffix(p.GetName(), ":latest")] = true
		logs = logs || p.GetType() == "Log"
	}
	has := func(kind, name string) bool {
		return name == "" || listed[kind+"/"+strings.TrimSuffix(name, ":latest")]
	}
	for _, net := range t.GetNetworks() {
		if !has("Network", net.GetTarget()) {
			return false
		}
	}
	for _, m := range t.GetContainer().GetMounts() {
		if m.GetType() == swarmv1.Mount_VOLUME && !has("Volume", m.GetVolumeOptions().GetDriverConfig().GetName()) {
			return false
		}
	}
	return !logs || t.GetLogDriver().GetName() == "none" || has("Log", t.GetLogDriver().GetName())
}

// matches reports whether a node fulfils all constraints.
func matches(p *swarmv1.Placement, n *swarmv1.Node) bool {
	for _, text := range p.GetConstraints() {
		c, err := parseConstraint(text)
		if err != nil || !c.holds(n) {
			return false // stored values were parsed before
		}
	}
	return true
}
