package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

const rules = "../../contrib/prometheus/longshore.rules.yml"

// checkRules has promtool check the alerts, and run their tests: each fires on one node and not on another.
func checkRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", strings.TrimSuffix(rules, ".yml") + ".test.yml"}} {
		if out, err := command(t, "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// firing returns the alerts that fire.
func (p prometheus) firing() []string {
	var found []string
	p.ask(&found, "label/alertname/values", map[string][]string{"match[]": {`ALERTS{alertstate="firing"}`}})
	return found
}

// alerts: none fires on a quiet node, and those that a test can cause fire on a real one. They do not wait here.
func alerts(t *testing.T, n *nodetest.Node, p prometheus, config, image string) {
	b, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	text := regexp.MustCompile(`(?m)^        for: .*\n`).ReplaceAllString(string(b), "")
	// The alerts about the disk and the findings are about the machine of the test.
	text = regexp.MustCompile(`(?s)      - alert: LongshoreDisk.*?      - alert: LongshoreRedundancyLost`).ReplaceAllString(text, "      - alert: LongshoreRedundancyLost")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	jobs, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	with := filepath.Join(t.TempDir(), "prometheus.yml")
	jobs = []byte(strings.Replace(string(jobs), "global: {", "global: { evaluation_interval: 1s,", 1) + "\nrule_files: [" + file + "]\n")
	if err := os.WriteFile(with, jobs, 0o600); err != nil {
		t.Fatal(err)
	}
	p.reload(config, with)
	nodetest.Eventually(t, "the exits are in Prometheus", func() bool { return p.value(`count(longshore_exits_total{reason="oom",owner="cri"})`) > 0 })
	if found := p.firing(); len(found) > 0 {
		t.Errorf("on a quiet node: %q", found)
	}
	fires := func(name string, again func()) {
		t.Helper()
		nodetest.Eventually(t, name+" fires", func() bool {
			if again != nil {
				again()
			}
			return slices.Contains(p.firing(), name)
		})
	}
	pod := n.RunPod(t, n.PodConfig("alerts"))
	memory := nodetest.ContainerConfig("memory", image, "/bin/tail", "/dev/zero")
	memory.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 8 << 20}
	pod.Run(t, memory).WaitExited(t)
	fires("LongshoreOutOfMemory", nil)
	fires("LongshoreProgramsMissing", func() {
		_, _ = n.CLI("run", "--rm", image, "/no/such/program")
	})
	fires("LongshorePullsFail", func() {
		_, _ = n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "127.0.0.1:1/none:latest"}})
	})
	if out, err := n.CLI("run", "-d", "--name", "sick", "--health-cmd", "false", "--health-interval", "1s", "--health-retries", "1", image, "sleep", "1000"); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	fires("LongshoreUnhealthy", nil)
	if out, err := n.CLI("rm", "-f", "sick"); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	n.Stop()
	fires("LongshoreAgentDown", nil)
	n.Launch()
	n.Up()
}
