package node

import (
	"fmt"
	"os"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestThreeNodesOnOneMachine: each agent has a network namespace of its own, and a bridge
// in it, so that a test has several nodes.
func TestThreeNodesOnOneMachine(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		seen := map[string]bool{}
		for i := range 3 {
			o := nodetest.Options{}
			if i > 0 {
				name := fmt.Sprintf("node%d", i)
				nodetest.Lines(t, "ip", "netns", "add", name)
				o.NetNS = "/run/netns/" + name
				nodetest.Lines(t, "ip", "-n", name, "link", "set", "lo", "up")
			}
			n := nodetest.Start(t, o)
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.Pid()))
			if err != nil || seen[ns] {
				t.Errorf("node %d is in the network namespace %s, %v", i, ns, err)
			}
			seen[ns] = true
			n.RunPod(t, n.PodConfig("pod")) // its address is on the bridge of that namespace
			n.Check()
		}
	})
}
