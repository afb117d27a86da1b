package swarm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
)

// views returns the views of a service's two tasks, by their nodes.
func (x *mixed) views(d *drawn, service string) map[string]map[string][]string {
	x.t.Helper()
	seen := map[string]map[string][]string{}
	for _, p := range x.settled(map[string]int{service: 2}) {
		roottest.Eventually(x.t, p.String()+" has seen all", func() bool {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/dev/shm/seen", p.pid))
			seen[p.node] = d.view(string(text))
			return err == nil && strings.HasSuffix(string(text), "@end\n")
		})
	}
	return seen
}

// TestWhatTasksSeeOnBothKinds: services with values drawn at random run on a node of dockerd's and on one of
// ours, and all that their tasks see is alike.
func TestWhatTasksSeeOnBothKinds(t *testing.T) {
	beside(t, func(t *testing.T) {
		services := 60
		if testing.Short() {
			services = 10
		}
		x := newMixed(t, 1, 1)
		seed := uint64(time.Now().UnixNano())
		if text := os.Getenv("LONGSHORE_SWARM_SEED"); text != "" {
			if _, err := fmt.Sscan(text, &seed); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("LONGSHORE_SWARM_SEED=%d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		dir := t.TempDir()
		x.write("secret", "planted-secret")
		x.write("config", "a config")
		x.docker("secret", "create", "pw", x.home+"/secret")
		x.docker("config", "create", "conf", x.home+"/config")
		x.docker("network", "create", "--driver", "overlay", "back")
		newer := !strings.HasPrefix(x.docker("version", "--format", "{{.Server.Version}}"), "20.")
		views, options := 0, map[string]int{}
		for n := range services {
			d := draw(rnd, "pw", "conf", dir, newer)
			for _, name := range d.named {
				options[name]++
			}
			name := fmt.Sprintf("drawn%d", n)
			x.create(name, x.ref, slices.Concat([]string{"--mode", "global", "--network", "back"}, d.options, []string{"--", "sh", "-c", d.program(), "sh"}, d.args)...)
			t.Logf("%s: %q", name, d.options)
			seen := x.views(d, name)
			ours, theirs := seen["ours0"], seen["dockerd0"]
			if len(theirs) < 10 {
				t.Fatalf("dockerd's task has seen only %v", theirs)
			}
			both := maps.Clone(theirs)
			maps.Copy(both, ours)
			for part := range both {
				views += len(theirs[part])
				if !slices.Equal(ours[part], theirs[part]) {
					t.Errorf("%s: %s is\n%q here, with dockerd\n%q", name, part, ours[part], theirs[part])
				}
			}
			x.docker("service", "rm", name)
		}
		t.Logf("%d services with %d kinds of options, of which their tasks saw %d values: %v", services, len(options), views, options)
		// The comparison finds a difference.
		d := &drawn{}
		x.create("control", x.ref, "--mode", "global", "--network", "back", "--env", "AT={{.Node.ID}}", "--", "sh", "-c", d.program())
		if seen := x.views(d, "control"); slices.Equal(seen["ours0"]["environment"], seen["dockerd0"]["environment"]) {
			t.Errorf("on both nodes the environment is %q", seen["ours0"]["environment"])
		}
		x.docker("service", "rm", "control")
		x.ours[0].none()
		x.ours[0].node.Check()
	})
}
