package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTwoHundredPodsLeaveNothing: after 200 pods were made and removed, the kernel and the disk
// hold the same as before.
func TestTwoHundredPodsLeaveNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cycle := func(i int) {
			p := n.RunPod(t, n.PodConfig(fmt.Sprintf("leak-%d", i)))
			p.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", "echo hello; exec sleep 1000"))
			p.Remove(t)
		}
		cycles := func(from, each int) {
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := range each {
						cycle(from + each*w + i)
					}
				})
			}
			wg.Wait()
		}
		cycles(0, 5) // bridge, tables, pollers: they stay from now on
		var before nodetest.Holdings
		nodetest.Eventually(t, "the first pods' links and files are gone", func() bool {
			before = n.Baseline(t)
			return !slices.ContainsFunc(before["links"], func(l string) bool { return strings.Contains(l, "@") }) &&
				!slices.ContainsFunc(before["files root"], func(f string) bool { return strings.Contains(f, "/trash/") && !strings.HasSuffix(f, "/trash/") })
		})
		cycles(100, 50)
		if t.Failed() {
			return
		}
		// Links vanish after their namespace, connections after their call: wait for the same
		// holdings, then show the difference.
		var diff string
		t.Cleanup(func() {
			if diff != "" {
				t.Logf("what is not as before (-before +after):\n%s", diff)
				out, err := n.CLI("check")
				t.Logf("check: %s %v", out, err)
			}
		})
		nodetest.Eventually(t, "what 200 pods used is given back", func() bool {
			diff = n.Holdings(t).Since(before)
			return diff == ""
		})
		n.Check()
	})
}
