package compose

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/invalid"
)

// advice says what to write instead of a key of a service.
func advice(key string) string {
	return map[string]string{
		"build":               "build and push the image first, and name it in image",
		"container_name":      "leave it out: tasks are named after the service",
		"cpu_count":           "write deploy.resources.limits.cpus",
		"cpu_percent":         "write deploy.resources.limits.cpus",
		"cpu_period":          "write deploy.resources.limits.cpus",
		"cpu_quota":           "write deploy.resources.limits.cpus",
		"cpu_shares":          "write deploy.resources.reservations.cpus",
		"cpus":                "write deploy.resources.limits.cpus",
		"depends_on":          "leave it out: services start together, and a task that fails is started again",
		"extends":             "write a merge key (<<), or one file by docker compose config",
		"links":               "leave it out, and use the address of a node and a port of the mode host",
		"mem_limit":           "write deploy.resources.limits.memory",
		"mem_reservation":     "write deploy.resources.reservations.memory",
		"pids_limit":          "write deploy.resources.limits.pids",
		"privileged":          "write cap_add with the capabilities that the service needs",
		"scale":               "write deploy.replicas",
		"tmpfs":               "write volumes with an element {type: tmpfs, target: DIRECTORY}",
		"profiles":            "remove the services that should not be deployed",
		"pull_policy":         "leave it out: nodes pull missing images",
		"platform":            "write deploy.placement.constraints with node.platform.arch",
		"memswap_limit":       "leave it out, and write deploy.resources.limits.memory",
		"mem_swappiness":      "leave it out",
		"blkio_config":        "leave it out",
		"cpuset":              "leave it out, and write deploy.resources.limits.cpus",
		"external_links":      "leave it out, and use the address of a node and a port of the mode host",
		"group_add":           "write user",
		"oom_score_adj":       "leave it out",
		"volumes_from":        "write volumes with the same names in both services",
		"restart_policy":      "write it below deploy",
		"replicas":            "write it below deploy",
		"placement":           "write it below deploy",
		"resources":           "write it below deploy",
		"update_config":       "write it below deploy",
		"rollback_config":     "write it below deploy",
		"stdin_open":          "leave it out: tasks have no standard input",
		"userns_mode":         "leave it out",
		"security_opt":        "leave it out: tasks have the node's default profiles",
		"shm_size":            "write volumes with an element {type: tmpfs, target: /dev/shm, tmpfs: {size: BYTES}}",
		"device_cgroup_rules": "leave it out",
	}[key]
}

// ignored are the keys of a service that have no effect, as in docker stack deploy, and why.
func ignored() map[string]string {
	return map[string]string{
		"restart": "deploy.restart_policy says when a task is started again",
		"expose":  "all ports of a task are reachable in its network",
	}
}

// limits of a file, whose aliases can make a small text large.
const (
	maxDepth = 50
	maxNodes = 100_000
)

// checker finds all keys of a file that are not possible.
type checker struct {
	path    string
	refused []error
	notes   []string
	nodes   int
}

func (c *checker) refuse(line int, key, why string) {
	text := fmt.Sprintf("%s:%d: %s is not possible here", c.path, line, key)
	if why != "" {
		text += ": " + why
	}
	if err := invalid.Errorf("%s", text); !slices.ContainsFunc(c.refused, func(e error) bool { return e.Error() == err.Error() }) {
		c.refused = append(c.refused, err)
	}
}

// check refuses keys that are not known, with their lines. Keys that begin with x- are the
// user's own. It fails when the file is too large to be checked.
func (c *checker) check(n *yaml.Node, known keys, at string, depth int) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if c.nodes++; c.nodes > maxNodes || depth > maxDepth {
		return invalid.Errorf("%s: with its aliases it has more than %d elements, or more than %d levels", c.path, maxNodes, maxDepth)
	}
	if known == nil {
		return nil
	}
	if n.Kind == yaml.SequenceNode {
		for i, e := range n.Content {
			if err := c.check(e, known["[]"], fmt.Sprintf("%s[%d].", strings.TrimSuffix(at, "."), i), depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if n.Kind != yaml.MappingNode || known["[]"] != nil {
		return nil // what it must be is for the schema to say
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			if err := c.merged(value, known, at, depth); err != nil {
				return err
			}
			continue
		}
		below, ok := known[key.Value]
		if !ok {
			below, ok = known["*"]
		}
		if !ok {
			if !strings.HasPrefix(key.Value, "x-") {
				c.refuse(key.Line, at+key.Value, advice(key.Value))
			}
			continue
		}
		if why := ignored()[key.Value]; why != "" && strings.HasPrefix(at, "services.") && strings.Count(at, ".") == 2 {
			c.note("%s:%d: %s%s is ignored: %s", c.path, key.Line, at, key.Value, why)
		}
		if err := c.check(value, below, at+key.Value+".", depth+1); err != nil {
			return err
		}
	}
	return nil
}

// merged checks the mappings of a merge key, which is one or a list of them.
func (c *checker) merged(n *yaml.Node, known keys, at string, depth int) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	all := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		all = n.Content
	}
	for _, one := range all {
		if err := c.check(one, known, at, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.notes, text) {
		c.notes = append(c.notes, text)
	}
}

// unset notes the variables of a file that have neither a value nor a default. It fails for a file that the loader must not
// get, such as one with an alias of itself.
func (c *checker) unset(doc *yaml.Node, env map[string]string) error {
	var file map[string]any
	if err := doc.Decode(&file); err != nil {
		return errors.Join(append(c.refused, invalid.Errorf("%s: %w", c.path, err))...)
	}
	var names []string
	for name, v := range template.ExtractVariables(file, template.DefaultPattern) {
		if _, ok := env[name]; !ok && v.DefaultValue == "" && v.PresenceValue == "" && !v.Required {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		c.note("%s: the variable %s is not set; its value is empty", c.path, name)
	}
	return nil
}

// gateways notes the names that lead to each node itself.
func (c *checker) gateways(s types.ServiceConfig) {
	for name, addresses := range s.ExtraHosts {
		if slices.Contains(addresses, "host-gateway") {
			c.note("%s: services.%s.extra_hosts: %s is the address of the task's node", c.path, s.Name, name)
		}
	}
}
