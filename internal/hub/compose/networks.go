package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// The networks that each node has. They are the only ones: the hub makes none.
const (
	bridge = "bridge"
	host   = "host"
)

// networks refuses the networks of a file that a hub does not have.
func (c *checker) networks(p *types.Project, doc *yaml.Node) {
	for _, key := range slices.Sorted(maps.Keys(p.Networks)) {
		if n := p.Networks[key]; !bool(n.External) || nameOf(n, key) != bridge && nameOf(n, key) != host {
			c.refuse(line(doc, "networks", key), "networks."+key, "a network is external, and its name is "+bridge+" or "+host+", as nodes have these alone: publish ports with the mode host, or give the service network_mode: host. "+
				"Services that need an overlay stay with the managers of a Swarm; a node can also be its worker")
		}
	}
}

// attached is the network of a service: its network_mode, or the one of its networks. None is the
// node's bridge.
func (c *checker) attached(p *types.Project, s types.ServiceConfig, doc *yaml.Node) []*swarmv1.NetworkAttachmentConfig {
	target := s.NetworkMode
	for _, key := range slices.Sorted(maps.Keys(s.Networks)) {
		n, declared := p.Networks[key]
		if !declared || target != "" {
			c.refuse(line(doc, "services", s.Name, "networks"), "services."+s.Name+".networks", "a service has one network, declared in the file")
			return nil
		}
		if target = nameOf(n, key); target != bridge && target != host {
			return nil // networks has refused it
		}
	}
	switch target {
	case "":
		return nil
	case bridge, host:
		return []*swarmv1.NetworkAttachmentConfig{{Target: target}}
	}
	c.refuse(line(doc, "services", s.Name, "network_mode"), fmt.Sprintf("services.%s.network_mode %q", s.Name, target), "it is "+bridge+" or "+host)
	return nil
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
