package cri

import (
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnExecInAContainerThatIsKilledIsNoInternalError: while a container is killed, execs in it fail because
// it does not run, for any error of the kernel to the processes on their way into it.
func TestAnExecInAContainerThatIsKilledIsNoInternalError(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		seen := map[codes.Code]int{}
		for range 40 {
			pod := n.RunPod(t, n.PodConfig("killed"))
			c := pod.Run(t, nodetest.ContainerConfig("main", image, "sleep", "1000"))
			var mu sync.Mutex // guards seen
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for {
						_, err := n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"true"}})
						if err == nil {
							continue
						}
						code := status.Code(err)
						mu.Lock()
						seen[code]++
						mu.Unlock()
						if code != codes.FailedPrecondition && code != codes.NotFound {
							t.Errorf("exec: %v", err)
						}
						return
					}
				})
			}
			if _, err := n.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: c.ID}); err != nil {
				t.Fatal(err)
			}
			all.Wait()
			pod.Remove(t)
		}
		if t.Logf("%v", seen); seen[codes.FailedPrecondition] == 0 {
			t.Error("no exec has met a kill")
		}
	})
}
