package kubelet

import (
	"context"
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers are the runtime's of a pod.
func (n *node) containers(t *testing.T, pod string) []*runtimeapi.Container {
	t.Helper()
	r, err := n.CRI.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": pod + "-node"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetContainers()
}

// runs says whether a container of a pod runs.
func (n *node) runs(t *testing.T, pod string) bool {
	t.Helper()
	return slices.ContainsFunc(n.containers(t, pod), func(c *runtimeapi.Container) bool {
		return c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
	})
}

func TestStaticPods(t *testing.T) { isolated(t, staticPods) }

func staticPods(t *testing.T) {
	n := start(t, options{})
	t.Run("first", func(t *testing.T) {
		n.run(t, pod("first", shell("main", "echo hello; "+idle)))
		n.said(t, "first", "main", "hello")
	})
}
