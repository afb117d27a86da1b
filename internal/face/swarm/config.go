package swarm

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Config is the section [face.swarm].
type Config struct {
	// Enabled runs this face. It does nothing until the node joins a Swarm.
	Enabled bool `toml:"enabled"`
	// CPUs and MemoryBytes are the resources that the node reports to its managers; 0 is all of the
	// machine's. A dockerd beside us reports the same machine.
	CPUs        float64 `toml:"cpus"`
	MemoryBytes int64   `toml:"memory_bytes"`
	// CSI are the sockets of the drivers of cluster volumes, absolute paths by the names
	// that the Swarm's volumes have for their drivers.
	CSI map[string]string `toml:"csi"`
	// KeyPassphraseFile names the file with the passphrase that the node's key is encrypted
	// with; "" keeps the key as it is.
	KeyPassphraseFile string `toml:"key_passphrase_file"`
	// Labels are the engine's, for placement constraints of services (engine.labels.NAME==VALUE).
	Labels map[string]string `toml:"labels"`
	// GenericResources are the devices that the node reports to its managers: for each kind, such
	// as gpu, names of the Container Device Interface (vendor.com/class=name). One task at a time
	// has a device.
	GenericResources map[string][]string `toml:"generic_resources"`
	// GenericCounts are the numbers of generic resources without devices, such as seats of a
	// license. The managers count their use.
	GenericCounts map[string]int64 `toml:"generic_counts"`
	// Ingress selects the handling of ports that every node of the Swarm publishes: "mesh" (also ""),
	// "host" or "none".
	Ingress string `toml:"ingress"`
	// AdvertiseAddr is the node's address for other nodes' gossip of overlay networks; "" is its source
	// address towards a manager. DataPathAddr is its address for the networks' packets; "" is the same.
	AdvertiseAddr string `toml:"advertise_addr"`
	DataPathAddr  string `toml:"data_path_addr"`
	// LocalRestarts has the node start a task again by the task's own restart policy while
	// no manager can be reached.
	LocalRestarts bool `toml:"local_restarts"`
	// ImageDelay is how long an image is kept that no task of the node uses any more; below
	// 0 is for ever.
	ImageDelay Duration `toml:"image_delay"`
}

// Duration is a time span in the form of time.ParseDuration.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// imageDelay outlasts a service that is scaled to none over night: a node that is far from
// its registry need not fetch the image again.
const imageDelay = 24 * time.Hour

// The values of Config.Ingress.
const (
	IngressMesh = translate.IngressMesh // the node leads the ports of every service to its tasks, as docker's nodes do
	IngressHost = translate.IngressHost // it publishes those of its own tasks, as with mode=host
	IngressNone = translate.IngressNone // it takes no task that has one
)

// DefaultConfig has the defaults of the configuration file.
func DefaultConfig() Config {
	return Config{CSI: map[string]string{}, Labels: map[string]string{}, GenericResources: map[string][]string{}, GenericCounts: map[string]int64{}, LocalRestarts: true, ImageDelay: Duration(imageDelay)}
}

// isKind reports whether a generic resource may be called so: it is a part of a variable's name.
func isKind(name string) bool { return core.IsName(name, "._-", 64) }

// Validate returns InvalidArgument for values that cannot work.
func (c Config) Validate() error {
	if c.CPUs < 0 || c.CPUs > 1<<20 || math.IsNaN(c.CPUs) || c.MemoryBytes < 0 {
		return invalid.Errorf("face.swarm: cpus %v or memory_bytes %d is not a number of them", c.CPUs, c.MemoryBytes)
	}
	for name, socket := range c.CSI {
		if name == "" || !filepath.IsAbs(socket) {
			return invalid.Errorf("face.swarm.csi: %q = %q is not a driver and the path of its socket", name, socket)
		}
	}
	if !slices.Contains([]string{"", IngressMesh, IngressHost, IngressNone}, c.Ingress) {
		return invalid.Errorf("face.swarm.ingress %q is none of %q, %q and %q", c.Ingress, IngressMesh, IngressHost, IngressNone)
	}
	for name, text := range map[string]string{"advertise_addr": c.AdvertiseAddr, "data_path_addr": c.DataPathAddr} {
		if a, err := readAddr(text); err != nil || text != "" && (!a.IsGlobalUnicast() || a.Zone() != "") {
			return invalid.Errorf("face.swarm.%s %q is not an address of this node", name, text)
		}
	}
	for name := range c.Labels {
		if name == "" {
			return invalid.Errorf("face.swarm.labels: one has no name")
		}
	}
	return c.validateGeneric()
}

// readAddr reads an address; "" is none.
func readAddr(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	return netip.ParseAddr(text)
}

// maxCount is the highest number of a generic resource, so low that no sum of them overflows.
const maxCount = 1 << 31

func (c Config) validateGeneric() error {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(c.GenericResources)) {
		if !isKind(kind) {
			return invalid.Errorf("face.swarm.generic_resources: %q is not a kind (letters, digits, dots, dashes)", kind)
		}
		all = append(all, c.GenericResources[kind]...)
	}
	for _, kind := range slices.Sorted(maps.Keys(c.GenericCounts)) {
		switch n := c.GenericCounts[kind]; {
		case !isKind(kind):
			return invalid.Errorf("face.swarm.generic_counts: %q is not a kind (letters, digits, dots, dashes)", kind)
		case len(c.GenericResources[kind]) > 0:
			return invalid.Errorf("face.swarm.generic_counts: %s has devices in generic_resources, and is no number", kind)
		case n < 1 || n > maxCount:
			return invalid.Errorf("face.swarm.generic_counts: %s = %d is not a number of them", kind, n)
		}
	}
	// Two tasks could get a device in two kinds.
	if err := ocispec.CheckCDI(all); err != nil {
		return fmt.Errorf("face.swarm.generic_resources: %w", err)
	}
	return nil
}
