package compose

import (
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// The networks that each node has. They are the only ones: the hub makes none.
const (
	bridge = "bridge"
	host   = "host"
)

// networks is the network of a service: its network_mode, or the one of its networks. None is the
// node's bridge.
func networks(p *types.Project, s types.ServiceConfig, doc *yaml.Node, path string) ([]*swarmv1.NetworkAttachmentConfig, error) {
	for _, key := range slices.Sorted(maps.Keys(p.Networks)) {
		if n := p.Networks[key]; !bool(n.External) || nameOf(n, key) != bridge && nameOf(n, key) != host {
			return nil, invalid.Errorf("%s:%d: networks.%s is not possible here: a network is external, and its name is %s or %s, as nodes have these alone", path, line(doc, "networks", key), key, bridge, host)
		}
	}
	target := s.NetworkMode
	for _, key := range slices.Sorted(maps.Keys(s.Networks)) {
		n, declared := p.Networks[key]
		if !declared || target != "" {
			return nil, invalid.Errorf("%s:%d: services.%s.networks is not possible here: it is one network, of those that the file declares", path, line(doc, "services", s.Name, "networks"), s.Name)
		}
		target = nameOf(n, key)
	}
	switch target {
	case "":
		return nil, nil
	case bridge, host:
		return []*swarmv1.NetworkAttachmentConfig{{Target: target}}, nil
	}
	return nil, invalid.Errorf("%s:%d: services.%s.network_mode %q is not possible here: it is %s or %s", path, line(doc, "services", s.Name, "network_mode"), s.Name, target, bridge, host)
}

// nameOf is the name of a network that the file calls key.
func nameOf(n types.NetworkConfig, key string) string {
	if n.Name != "" {
		return n.Name
	}
	return key
}

// line is the line of a key in the file, or of the last one on the way there.
func line(n *yaml.Node, keys ...string) int {
	at := n.Line
	for _, key := range keys {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var below *yaml.Node
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if strings.EqualFold(n.Content[i].Value, key) {
				at, below = n.Content[i].Line, n.Content[i+1]
			}
		}
		if below == nil {
			return at
		}
		n = below
	}
	return at
}
