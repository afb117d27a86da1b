package cri

import (
	"fmt"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// BenchmarkLists asks for the lists that kubelet asks for every second, with 500
// pods.
func BenchmarkLists(b *testing.B) {
	n := newTestNode(b)
	const pods = 500
	var last string
	for i := range pods {
		pod := n.pod(b, fmt.Sprint("pod-", i))
		last = n.running(b, pod, "c")
	}
	b.Run("sandboxes", func(b *testing.B) {
		for b.Loop() {
			r, err := n.ListPodSandbox(b.Context(), &v1.ListPodSandboxRequest{})
			if err != nil || len(r.Items) != pods {
				b.Fatal(len(r.GetItems()), err)
			}
		}
	})
	b.Run("containers", func(b *testing.B) {
		for b.Loop() {
			r, err := n.ListContainers(b.Context(), &v1.ListContainersRequest{})
			if err != nil || len(r.Containers) != pods {
				b.Fatal(len(r.GetContainers()), err)
			}
		}
	})
	b.Run("status", func(b *testing.B) {
		for b.Loop() {
			if _, err := n.ContainerStatus(b.Context(), &v1.ContainerStatusRequest{ContainerId: last}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pod status", func(b *testing.B) {
		c, err := n.As(core.OwnerCRI).Container(b.Context(), core.ID(last))
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := n.PodSandboxStatus(b.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: string(c.Sandbox)}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stats", func(b *testing.B) {
		for b.Loop() {
			r, err := n.ListContainerStats(b.Context(), &v1.ListContainerStatsRequest{})
			if err != nil || len(r.Stats) != pods {
				b.Fatal(len(r.GetStats()), err)
			}
		}
	})
}
