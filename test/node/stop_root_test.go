package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAStoppedNodeLeavesNothing stops an agent that has nothing to look after,
// again and again: keeper, bridge, rules, mounts and cgroups go with it.
func TestAStoppedNodeLeavesNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		rules := nodetest.Lines(t, "nft", "list", "ruleset") // a firewall's
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		for range 3 {
			pod := n.RunPod(t, n.PodConfig("pod"))
			pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
			pod.Remove(t)
			clean(t, n)
			n.Stop()
			nodetest.Eventually(t, "keeper and nest end", func() bool { return len(nodetest.Pair("")) == 0 })
			if left := nodetest.Lines(t, "ip", "-o", "link", "show"); slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, "longshore") }) {
				t.Errorf("links: %q", left)
			}
			if left := nodetest.Lines(t, "nft", "list", "ruleset"); !slices.Equal(left, rules) {
				t.Errorf("rules: %q", left)
			}
			cgroups, _ := filepath.Glob("/sys/fs/cgroup/*" + n.Cgroup)
			unified, _ := filepath.Glob("/sys/fs/cgroup" + n.Cgroup)
			if left := append(cgroups, unified...); len(left) > 0 {
				t.Errorf("cgroups: %q", left)
			}
			if pairs, _ := filepath.Glob(filepath.Join(n.State, "keeper", "pair-*")); len(pairs) > 0 {
				t.Errorf("keepers' directories: %q", pairs)
			}
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(mounts)) {
				if strings.Contains(line, n.Dir) {
					t.Errorf("mount: %s", line)
				}
			}
			n.Up()
		}
	})
}
