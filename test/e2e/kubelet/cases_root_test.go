package kubelet

import (
	"flag"
	"os"
	"regexp"
	"testing"
)

// casesEnv is a regular expression of the cases of TestStaticPods to run.
const casesEnv = "LONGSHORE_KUBELET_CASES"

// TestMain runs the cases of one kubelet side by side: most of their time is the kubelet's waiting.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestStaticPods(t *testing.T) { isolated(t, staticPods) }

func staticPods(t *testing.T) {
	// With EventedPLEG kubelet 1.37.2 starts finished init containers again without end: it does
	// not find them in its status of the pod.
	chosen, err := regexp.Compile(os.Getenv(casesEnv))
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, options{config: map[string]any{
		"featureGates": map[string]bool{"EventedPLEG": false},
		// The default on cgroup v2 ends a container with its child: TestMemoryQoS.
		"singleProcessOOMKill": true,
	}})
	for _, c := range []struct {
		name string
		run  func(t *testing.T, n *node)
	}{
		{"init containers and sidecars", initContainers},
		{"readiness probes", readinessProbes},
		{"liveness and startup probes", livenessProbes},
		{"restart policies", restartPolicies},
		{"hooks and graceful termination", hooks},
		{"grace that runs out", graceRunsOut},
		{"volumes", volumes},
		{"downward API", downwardAPI},
		{"host network", hostNetwork},
		{"host ports", hostPorts},
		{"host namespaces", hostNamespaces},
		{"users", users},
		{"rights", rights},
		{"user namespace", userNamespace},
		{"sysctls", sysctls},
		{"OOM of main", oomOfMain},
		{"OOM of a child", oomOfChild},
		{"logs", logs},
		{"exec", execs},
		{"attach", attaches},
		{"port-forward", portForwards},
		{"grants", grantedPods},
		{"figures", figures},
	} {
		if !chosen.MatchString(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, n)
		})
	}
}
