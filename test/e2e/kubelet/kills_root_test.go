package kubelet

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore/longshore/test/nodetest"
)

// killsEnv is how long the agent is killed under running pods; 20 s without.
const killsEnv = "LONGSHORE_E2E_KILLS"

const killedPods = 30

// TestKills kills the agent every five seconds and the keeper once a minute
// while thirty pods write their logs and are probed. Nothing may restart, and
// no line may be lost or come twice.
func TestKills(t *testing.T) { isolated(t, kills) }

func kills(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv(killsEnv))
	if err != nil {
		lasts = 20 * time.Second
	}
	n := start(t, options{})
	for i := range killedPods {
		n.add(t, counting(fmt.Sprintf("counts-%02d", i)))
	}
	before := map[string]string{}
	for i := range killedPods {
		p := n.wait(t, fmt.Sprintf("counts-%02d", i), "is ready", ready)
		before[p.Name] = status(p, "main").ContainerID
	}
	agents, keepers := n.killFor(t, lasts)
	t.Logf("%s: killed the agent %d times, the keeper %d times", lasts, agents, keepers)
	n.kubeletSeesAll(t)
	for _, p := range n.pods(t) {
		if s := status(&p, "main"); s.RestartCount != 0 || s.ContainerID != before[p.Name] || s.State.Running == nil {
			t.Errorf("%s did not live through it: %+v", p.Name, s)
		}
	}
	lines := 0
	for i := range killedPods {
		lines += n.counted(t, fmt.Sprintf("counts-%02d", i))
	}
	t.Logf("%d lines of log, none lost", lines)
	n.noProbeRestarts(t)
	n.Check()
}

// counting is a pod that writes numbers, and is restarted when it fails its
// probe a few times.
func counting(name string) *corev1.Pod {
	c := shell("main", `trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo "n $i"; [ $((i % 10)) = 0 ] && echo "e $i" >&2; sleep 0.1; done`)
	c.LivenessProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, 3)
	c.LivenessProbe.PeriodSeconds = 5
	c.ReadinessProbe = c.LivenessProbe.DeepCopy()
	return pod(name, c)
}

// killFor kills for so long, and leaves all up.
func (n *node) killFor(t *testing.T, lasts time.Duration) (agents, keepers int) {
	t.Helper()
	agent, keeper, end := time.NewTicker(5*time.Second), time.NewTicker(time.Minute), time.After(lasts)
	defer agent.Stop()
	defer keeper.Stop()
	for {
		select {
		case <-agent.C:
			n.Kill()
			n.Launch()
			agents++
		case <-keeper.C:
			for _, pid := range nodetest.Pair("keeper") {
				if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
					keepers++
				}
			}
		case <-end:
			n.Kill()
			n.Up()
			return agents + 1, keepers
		}
	}
}

// kubeletSeesAll waits until every pod is ready again in the kubelet's eyes.
func (n *node) kubeletSeesAll(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, "all pods are ready", func() bool {
		count := 0
		for _, p := range n.pods(t) {
			if ready(&p) {
				count++
			}
		}
		return count == killedPods
	})
}

// counted reads a pod's log files whole, and asserts that each stream's numbers are in sequence. It
// returns the number of lines.
func (n *node) counted(t *testing.T, name string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.logs, "default_"+name+"-node_*", "main", "*"))
	if err != nil || len(files) != 1 {
		t.Errorf("%s has the log files %v (%v), want one", name, files, err)
		return 0
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	next := map[string]int{"n": 1, "e": 10}
	step := map[string]int{"n": 1, "e": 10}
	lines := 0
	for s := bufio.NewScanner(f); s.Scan(); lines++ {
		fields := strings.Fields(s.Text())
		if len(fields) != 5 || fields[2] != "F" || step[fields[3]] == 0 {
			t.Errorf("%s: line %d is torn: %q", name, lines, s.Text())
			continue
		}
		got, err := strconv.Atoi(fields[4])
		if err != nil || got != next[fields[3]] {
			t.Errorf("%s: %q came where %s %d was to come", name, s.Text(), fields[3], next[fields[3]])
		}
		next[fields[3]] = got + step[fields[3]]
	}
	return lines
}

// noProbeRestarts asserts that the kubelet's log has no container that was killed for a probe.
func (n *node) noProbeRestarts(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "will be restarted") || strings.Contains(line, "ContainerDied") {
			t.Errorf("the kubelet says: %s", line)
		}
		if strings.Contains(line, "Probe failed") || strings.Contains(line, "Probe errored") {
			failed++
		}
	}
	t.Logf("%d probes failed or could not be asked", failed)
}
