package dockerd

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// ManagerIP is where a manager is, on the bridge of Bridge: loopback is no address that a
// manager may tell to others.
const ManagerIP = "10.99.0.1"

// Swarm has the parameters for joining a Swarm.
type Swarm struct {
	Address string // host:port of its manager
	Token   string // of workers
}

// Bridge makes the bridge swarm0 with ManagerIP and other addresses of 10.99.0.0/24 in the
// caller's network namespace.
func Bridge(ctx context.Context, others ...string) error {
	lines := []string{"link add swarm0 type bridge"}
	for _, ip := range append([]string{ManagerIP}, others...) {
		lines = append(lines, "address add "+ip+"/24 dev swarm0")
	}
	for _, line := range append(lines, "link set swarm0 up") {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

// StartManager starts a dockerd that is to be a manager and runs no containers, without
// waiting until it answers.
func StartManager(packages, home string) (*Daemon, error) {
	return Start(Options{
		Packages: packages, Home: filepath.Clean(home),
		Flags: []string{"--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"},
	})
}

// StartRunner starts one that runs containers, below a cgroup, with images of a plain HTTP registry at an
// address, without waiting for its answer. wrap determines its place (Options.Wrap).
func StartRunner(packages, home, registry, cgroup string, wrap func(argv ...string) []string) (*Daemon, error) {
	return Start(Options{
		Packages: packages, Home: home, Wrap: wrap,
		Flags: []string{
			"--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
			"--insecure-registry", registry + "/32", "--cgroup-parent", cgroup,
		},
	})
}

// InitSwarm makes it the manager of a new Swarm, at ManagerIP, and drains it.
func (d *Daemon) InitSwarm(ctx context.Context) (Swarm, error) {
	s := Swarm{Address: ManagerIP + ":2377"}
	if _, err := d.Docker(ctx, "swarm", "init", "--advertise-addr", ManagerIP, "--listen-addr", s.Address); err != nil {
		return s, err
	}
	self, err := d.NodeID(ctx)
	if err != nil {
		return s, err
	}
	if _, err := d.Docker(ctx, "node", "update", "--availability", "drain", self); err != nil {
		return s, err
	}
	s.Token, err = d.Docker(ctx, "swarm", "join-token", "-q", "worker")
	return s, err
}

// NodeID is its own id in the Swarm.
func (d *Daemon) NodeID(ctx context.Context) (string, error) {
	return d.Docker(ctx, "info", "--format", "{{.Swarm.NodeID}}")
}
