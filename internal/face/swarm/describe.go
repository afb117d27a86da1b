package swarm

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// plugins are the plugins that tasks may need. The managers' scheduler reads the list: we never get
// a task that needs another.
func plugins() (list []*swarmv1.PluginDescription) {
	for _, p := range [][2]string{{"Log", "fluentd"}, {"Log", "journald"}, {"Log", "json-file"}, {"Log", "local"}, {"Log", "syslog"}, {"Network", "bridge"}, {"Network", "host"}, {"Volume", "local"}} {
		list = append(list, &swarmv1.PluginDescription{Type: p[0], Name: p[1]})
	}
	return list
}

// overlayPlugin is on the list while the node can be on overlay networks. Tasks with a port of the whole
// swarm are on one, too.
func overlayPlugin() *swarmv1.PluginDescription {
	return &swarmv1.PluginDescription{Type: "Network", Name: "overlay"}
}

// architecture is the machine's by the name that docker's nodes use.
func architecture() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// node is the node as tasks see it.
func node(id string, cfg Config) translate.Node {
	name, err := os.Hostname()
	if err != nil {
		name = id
	}
	return translate.Node{ID: id, Hostname: name, Architecture: architecture(), OS: runtime.GOOS, Devices: cfg.GenericResources, Counts: cfg.GenericCounts, Ingress: cmp.Or(cfg.Ingress, IngressMesh)}
}

// generic are the devices for tasks, each as a resource of its own, and the counted resources.
func generic(devices map[string][]string, counts map[string]int64) (list []*swarmv1.GenericResource) {
	for _, kind := range slices.Sorted(maps.Keys(devices)) {
		for _, name := range devices[kind] {
			list = append(list, &swarmv1.GenericResource{Resource: &swarmv1.GenericResource_NamedResourceSpec{
				NamedResourceSpec: &swarmv1.NamedGenericResource{Kind: kind, Value: name},
			}})
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, &swarmv1.GenericResource{Resource: &swarmv1.GenericResource_DiscreteResourceSpec{
			DiscreteResourceSpec: &swarmv1.DiscreteGenericResource{Kind: kind, Value: counts[kind]},
		}})
	}
	return list
}

// describe returns the node's description for the managers, without its certificate.
func describe(n translate.Node, cfg Config, version string) (*swarmv1.NodeDescription, error) {
	cpus, memory := cfg.CPUs, cfg.MemoryBytes
	if cpus == 0 {
		cpus = float64(runtime.NumCPU())
	}
	if memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return nil, fmt.Errorf("the machine's memory: %w", err)
		}
		memory = int64(info.Totalram) * int64(info.Unit)
	}
	if version == "" {
		version = "0.0.0"
	}
	return &swarmv1.NodeDescription{
		Hostname:  n.Hostname,
		Platform:  &swarmv1.Platform{Architecture: n.Architecture, Os: n.OS},
		Resources: &swarmv1.Resources{NanoCpus: int64(cpus * 1e9), MemoryBytes: memory, Generic: generic(cfg.GenericResources, cfg.GenericCounts)},
		Engine:    &swarmv1.EngineDescription{EngineVersion: "longshore " + version, Labels: cfg.Labels, Plugins: plugins()},
	}, nil
}
