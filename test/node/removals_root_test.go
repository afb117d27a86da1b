package node

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRemovalsSucceed: no removal of a sandbox fails, empty or with a running container, with and
// without a stop before, and with an init of the sandbox's own, by one, four and sixteen workers. A
// killed process may not have ended yet, and a removal waits for that. LONGSHORE_REMOVALS is the
// number, of all kinds together.
func TestRemovalsSucceed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		total := 240
		if s := os.Getenv("LONGSHORE_REMOVALS"); s != "" {
			var err error
			if total, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		// Output in small pieces keeps the keeper busy, and it then sees ends late.
		noisy := n.RunPod(t, n.PodConfig("noisy"))
		for i := range 2 {
			noisy.Run(t, nodetest.ContainerConfig(fmt.Sprintf("c%d", i), image, "/bin/sh", "-c", "while :; do echo; done"))
		}
		for _, workers := range []int{1, 4, 16} {
			for _, stops := range []bool{false, true} {
				var next, failed atomic.Int64
				each := int64(max(total/6, workers))
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for i := next.Add(1); i <= each && !t.Failed(); i = next.Add(1) {
							if err := removal(t, n, fmt.Sprintf("p-%d-%v-%d", workers, stops, i), image, i%2 == 0, stops); err != nil {
								failed.Add(1)
								t.Logf("workers %d, stop before %v, sandbox %d: %v", workers, stops, i, err)
							}
						}
					})
				}
				wg.Wait()
				if f := failed.Load(); f > 0 {
					t.Errorf("workers %d, stop before %v: %d of %d removals failed", workers, stops, f, each)
				}
			}
		}
		n.Check()
	})
}

// removal makes a sandbox, with a running container or empty, and removes it again.
func removal(t *testing.T, n *nodetest.Node, name, image string, filled, stops bool) error {
	cfg := n.PodConfig(name)
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	p := n.RunPod(t, cfg)
	if filled {
		p.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
	}
	if stops {
		if _, err := n.CRI.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
			return err
		}
	}
	_, err := n.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID})
	return err
}
