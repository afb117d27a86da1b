package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// shell is a container that runs a script.
func shell(name, script string) corev1.Container {
	return corev1.Container{Name: name, Image: busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script}}
}

// idle is a script that runs until SIGTERM.
const idle = `trap 'exit 0' TERM; while :; do sleep 0.2; done`

// pod is a static pod.
func pod(name string, containers ...corev1.Container) *corev1.Pod {
	grace := int64(2)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: containers, TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyAlways},
	}
}

// add gives the kubelet a pod, which is taken away when the test ends.
func (n *node) add(t *testing.T, p *corev1.Pod) {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	// The kubelet takes no notice of names that begin with a dot.
	temp := filepath.Join(n.manifests, "."+p.Name)
	write(t, temp, string(b))
	if err := os.Rename(temp, n.manifest(p.Name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.remove(t, p.Name) })
}

func (n *node) manifest(name string) string { return filepath.Join(n.manifests, name+".json") }

// remove removes a pod and waits until none of its processes runs. The kubelet collects ended
// containers once a minute.
func (n *node) remove(t *testing.T, name string) {
	t.Helper()
	_ = os.Remove(n.manifest(name))
	if n.cmd == nil {
		return
	}
	nodetest.Eventually(t, name+" is gone", func() bool { return n.pod(t, name) == nil && !n.runs(t, name) })
}

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

// pods are all pods as the kubelet tells of them.
func (n *node) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	b, err := n.get(context.Background(), "/pods")
	if err != nil {
		return nil
	}
	var list corev1.PodList
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// pod returns the kubelet's report of a pod, nil when it knows none.
func (n *node) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	for _, p := range n.pods(t) {
		if p.Name == name+"-node" {
			return &p
		}
	}
	return nil
}

// wait waits until a pod is as ok says.
func (n *node) wait(t *testing.T, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	t.Cleanup(func() {
		if t.Failed() && p != nil {
			b, _ := json.MarshalIndent(p.Status, "", " ")
			t.Logf("%s at last: %s", name, b)
		}
	})
	nodetest.Eventually(t, name+" "+what, func() bool {
		p = n.pod(t, name)
		return p != nil && ok(p)
	})
	return p
}

// run adds a pod and waits until it is ready.
func (n *node) run(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	n.add(t, p)
	return n.wait(t, p.Name, "is ready", ready)
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// status is a container's of a pod, init containers included.
func status(p *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// output returns a container's output so far, by the kubelet.
func (n *node) output(t *testing.T, pod, container, query string) string {
	t.Helper()
	b, err := n.get(t.Context(), fmt.Sprintf("/containerLogs/default/%s-node/%s?%s", pod, container, query))
	if err != nil {
		return ""
	}
	return string(b)
}

// said waits until a container has written a text.
func (n *node) said(t *testing.T, pod, container, text string) string {
	t.Helper()
	var out string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s/%s wrote %q", pod, container, out)
		}
	})
	nodetest.Eventually(t, fmt.Sprintf("%s/%s says %q", pod, container, text), func() bool {
		out = n.output(t, pod, container, "")
		return strings.Contains(out, text)
	})
	return out
}

// ended waits until a pod is over, and returns how it ended.
func (n *node) ended(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return n.wait(t, name, "is over", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// once is a pod that runs one script to its end.
func once(name, script string) *corev1.Pod {
	p := pod(name, shell("main", script))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// succeeds runs a pod to its successful end, and returns the output of its container main.
func (n *node) succeeds(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	n.add(t, p)
	over := n.ended(t, p.Name)
	out := n.output(t, p.Name, "main", "")
	if over.Status.Phase != corev1.PodSucceeded {
		t.Errorf("%s is %s, and wrote %q", p.Name, over.Status.Phase, out)
	}
	return out
}

// share mounts a new emptyDir at /share of all containers.
func share(p *corev1.Pod, v corev1.VolumeSource) *corev1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "share", VolumeSource: v})
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: "share", MountPath: "/share"})
		}
	}
	return p
}

func emptyDir() corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
}

func hostPath(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

// contains fails the test for every text that is not in out.
func contains(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in %q", text, out)
		}
	}
}
