package cluster

import (
	"flag"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
)

// checksEnv is a regular expression of the checks to run, GROUP/NAME.
const checksEnv = "LONGSHORE_CLUSTER_CHECKS"

// check is one thing that a cluster's user relies on. It has a namespace of its own.
type check struct {
	name string
	run  func(t *testing.T, s *space)
}

// group is checks that run side by side, or one after the other where they disturb
// the nodes.
type group struct {
	name   string
	alone  bool
	checks []check
}

func groups() []group {
	return []group{
		{"pods", false, podChecks()},
		{"network", false, networkChecks()},
		{"volumes", false, volumeChecks()},
		{"rights", false, rightsChecks()},
		{"classes", false, classChecks()},
		{"workloads", false, workloadChecks()},
		{"streams", false, streamChecks()},
		{"resize", false, resizeChecks()},
		{"figures", false, figureChecks()},
		{"sandboxes", false, sandboxChecks()},
		{"nodes", true, nodeChecks()},
		{"kills", true, killChecks()},
	}
}

// TestMain runs the checks of one cluster side by side: most of their time is waiting.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestChecks: the list has a hundred checks, each with a name of its own.
func TestChecks(t *testing.T) {
	seen, n := map[string]bool{}, 0
	for _, g := range groups() {
		for _, c := range g.checks {
			if name := g.name + "/" + c.name; seen[name] {
				t.Errorf("two checks are called %q", name)
			} else {
				seen[name] = true
			}
			n++
		}
	}
	if n < 100 {
		t.Errorf("%d checks, want a hundred", n)
	}
}

func TestCluster(t *testing.T) { isolated(t, clusterChecks) }

func clusterChecks(t *testing.T) {
	chosen, err := regexp.Compile(os.Getenv(checksEnv))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	c.serveGranted(t)
	c.classes(t)
	c.startSandboxes(t)
	var passed, failed, skipped atomic.Int32
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			for _, k := range g.checks {
				if !chosen.MatchString(g.name + "/" + k.name) {
					continue
				}
				t.Run(k.name, func(t *testing.T) {
					if !g.alone {
						t.Parallel()
					}
					t.Cleanup(func() {
						switch {
						case t.Failed():
							failed.Add(1)
						case t.Skipped():
							skipped.Add(1)
						default:
							passed.Add(1)
						}
					})
					k.run(t, c.namespace(t))
				})
			}
		})
	}
	t.Logf("%d checks passed, %d failed, %d were skipped", passed.Load(), failed.Load(), skipped.Load())
	c.quiet(t)
}

// quiet waits until the checks' objects are gone, and makes each node compare its records with the
// kernel.
func (c *cluster) quiet(t *testing.T) {
	t.Helper()
	c.namespacesGone(t)
	for _, n := range c.nodes {
		n.agent.Check()
	}
}
