package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

func resizeChecks() []check {
	return []check{
		{"more CPU without a restart", resizeCPU},
		{"more memory without a restart", resizeMemory},
		{"memory with a restart", resizeRestart},
		{"more than the node has is refused", resizeInfeasible},
	}
}

// resize changes the limits of main.
func (s *space) resize(t *testing.T, pod, cpu, memory string) {
	t.Helper()
	r := fmt.Sprintf(`{"cpu":%q,"memory":%q}`, cpu, memory)
	patch(t, s.cluster, pods(s.ns, pod), `{"spec":{"containers":[{"name":"main","resources":{"requests":`+r+`,"limits":`+r+`}}]}}`, "resize")
}

// resized waits until kubelet says that main has so much, and returns the pod.
func (s *space) resized(t *testing.T, pod, cpu, memory string) *corev1.Pod {
	t.Helper()
	return s.wait(t, pod, "is resized", func(p *corev1.Pod) bool {
		r := state(p, "main").Resources
		return r != nil && r.Limits.Cpu().String() == cpu && r.Limits.Memory().String() == memory && ready(p) &&
			condition(p, corev1.PodResizeInProgress) != corev1.ConditionTrue && condition(p, corev1.PodResizePending) != corev1.ConditionTrue
	})
}

func resizeCPU(t *testing.T, s *space) {
	before := s.run(t, pod("cpu", limited(sleeper("main"), "100m", "64Mi")))
	s.resize(t, "cpu", "300m", "64Mi")
	after := s.resized(t, "cpu", "300m", "64Mi")
	if a, b := state(before, "main"), state(after, "main"); a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("it was started anew: %+v", b)
	}
	if out := s.sh(t, "cpu", cgroupFiles); !strings.Contains(out, "30000") {
		t.Errorf("its cgroup has %q", out)
	}
}

func resizeMemory(t *testing.T, s *space) {
	for _, n := range s.nodes {
		name := "on-" + n.name
		before := s.run(t, on(n, pod(name, limited(sleeper("main"), "100m", "64Mi"))))
		for _, memory := range []string{"128Mi", "96Mi"} {
			s.resize(t, name, "100m", memory)
			after := s.resized(t, name, "100m", memory)
			if a, b := state(before, "main"), state(after, "main"); a.ContainerID != b.ContainerID || b.RestartCount != 0 {
				t.Errorf("%s: it was started anew: %+v", memory, b)
			}
			want := map[string]string{"128Mi": "134217728", "96Mi": "100663296"}[memory]
			if out := s.sh(t, name, cgroupFiles); !strings.Contains(out, want) {
				t.Errorf("%s: its cgroup has %q", memory, out)
			}
		}
	}
}

func resizeRestart(t *testing.T, s *space) {
	c := limited(sleeper("main"), "100m", "64Mi")
	c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	s.run(t, pod("restart", c))
	s.resize(t, "restart", "100m", "128Mi")
	if n := state(s.resized(t, "restart", "100m", "128Mi"), "main").RestartCount; n != 1 {
		t.Errorf("started again %d times, want once", n)
	}
	if out := s.sh(t, "restart", cgroupFiles); !strings.Contains(out, "134217728") {
		t.Errorf("its cgroup has %q", out)
	}
}

func resizeInfeasible(t *testing.T, s *space) {
	s.run(t, pod("much", limited(sleeper("main"), "100m", "64Mi")))
	_, err := s.api.CoreV1().Pods(s.ns).Patch(t.Context(), "much", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}}]}}`), metav1.PatchOptions{}, "resize")
	if !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
	if e := state(s.wait(t, "much", "is ready", ready), "main"); e.RestartCount != 0 || e.Resources.Limits.Cpu().String() != "100m" {
		t.Errorf("%+v", e)
	}
}

func figureChecks() []check {
	return []check{
		{"/stats/summary of both nodes", summaries},
		{"a Burstable pod's swap", swapping},
		{"/metrics/resource and /metrics/cadvisor", metrics},
		{"the nodes say who runs them", nodeInfo},
		{"one cause is one event", oneEvent},
	}
}

// ofNode asks a kubelet by the API server.
func (c *cluster) ofNode(t *testing.T, node, path string) []byte {
	t.Helper()
	b, err := c.api.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy" + path).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func summaries(t *testing.T, s *space) {
	for _, n := range s.nodes {
		name := "on-" + n.name
		s.run(t, on(n, pod(name, limited(shell("main", "dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; subject eat 20 & while :; do :; done"), "100m", "64Mi"))))
	}
	for _, n := range s.nodes {
		eventually(t, "figures of a pod on "+n.name, func() bool {
			var sum stats.Summary
			if err := json.Unmarshal(s.ofNode(t, n.name, "/stats/summary"), &sum); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(sum.Pods, func(p stats.PodStats) bool { return p.PodRef.Name == "on-"+n.name && p.PodRef.Namespace == s.ns })
			if i < 0 || len(sum.Pods[i].Containers) != 1 {
				return false
			}
			p, c := sum.Pods[i], sum.Pods[i].Containers[0]
			if unified() && (c.CPU == nil || c.CPU.PSI == nil || c.CPU.PSI.Some.Total == 0 || c.Memory == nil || c.Memory.PSI == nil || c.IO == nil || c.IO.PSI == nil) {
				return false // its CPU limit makes it wait
			}
			return c.CPU != nil && ptr.Deref(c.CPU.UsageNanoCores, 0) > 1e6 && c.Memory != nil && ptr.Deref(c.Memory.WorkingSetBytes, 0) > 20<<20 &&
				c.Rootfs != nil && ptr.Deref(c.Rootfs.UsedBytes, 0) >= 3<<20 && p.Memory != nil && ptr.Deref(p.Memory.WorkingSetBytes, 0) > 20<<20
		})
	}
}

// swapping: the node's part of swap is in proportion to the request, and a container over its limit
// gets to it.
func swapping(t *testing.T, s *space) {
	var memory, swap int64
	for line := range strings.Lines(read(t, "/proc/meminfo")) {
		_, _ = fmt.Sscanf(line, "MemTotal: %d", &memory)
		_, _ = fmt.Sscanf(line, "SwapTotal: %d", &swap)
	}
	if !unified() || swap == 0 {
		t.Skip("this machine has no swap, or not cgroup v2 alone")
	}
	c := shell("main", "subject eat 310 & while :; do sleep 1; done")
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("300Mi")}
	s.run(t, on(s.nodes[1], pod("swaps", c)))
	want, got := int64(256<<20)*swap/memory/4096*4096, int64(-1)
	if out := s.sh(t, "swaps", "cat /sys/fs/cgroup/memory.swap.max"); out != fmt.Sprintln(want) {
		t.Errorf("its part of %d kB is %q, want %d", swap, out, want)
	}
	eventually(t, "10 MB in swap", func() bool {
		var sum stats.Summary
		if err := json.Unmarshal(s.ofNode(t, "node2", "/stats/summary"), &sum); err != nil {
			t.Fatal(err)
		}
		for _, p := range sum.Pods {
			if p.PodRef.Name == "swaps" && len(p.Containers) == 1 && p.Containers[0].Swap != nil {
				got = int64(ptr.Deref(p.Containers[0].Swap.SwapUsageBytes, 0))
			}
		}
		return got > 10e6
	})
	if e := state(s.wait(t, "swaps", "is ready", ready), "main"); e.RestartCount != 0 {
		t.Errorf("%+v", e)
	}
}

func metrics(t *testing.T, s *space) {
	s.run(t, on(s.nodes[1], pod("metrics", limited(sleeper("main"), "100m", "64Mi"))))
	for _, path := range []string{"/metrics/resource", "/metrics/cadvisor"} {
		eventually(t, "the pod in "+path, func() bool {
			return strings.Contains(string(s.ofNode(t, "node2", path)), fmt.Sprintf("namespace=%q,pod=\"metrics\"", s.ns))
		})
	}
}

func nodeInfo(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("image", sleeper("main"))))
	n := waitFor(t, s.cluster, nodes("node1"), "names its images", func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, busybox) })
	})
	if v := n.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, "longshore://") {
		t.Errorf("the runtime is %q", v)
	}
	if f := n.Status.Features; f == nil || !ptr.Deref(f.SupplementalGroupsPolicy, false) {
		t.Errorf("the features are %+v", f)
	}
}

// oneEvent: kubelet joins events by their text, so the same cause has to give the
// same text again and again.
func oneEvent(t *testing.T, s *space) {
	p := pod("same", sleeper("main"))
	p.Spec.Containers[0].Command = []string{"no-such-program"}
	s.create(t, s.ns, p)
	list := func() (all []corev1.Event) {
		events, err := s.api.CoreV1().Events(s.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return e.Reason != "Failed" })
	}
	eventually(t, "three failures", func() bool {
		n := int32(0)
		for _, e := range list() {
			n += max(e.Count, 1)
		}
		return n >= 3
	})
	if all := list(); len(all) != 1 {
		t.Errorf("%d events: %s", len(all), s.events(s.ns, "same"))
	}
}

func nodeChecks() []check {
	return []check{
		{"the eviction of a pod", eviction},
		{"a budget holds an eviction back", budget},
		{"a drain of a node", drain},
		{"a taint keeps pods away", taintNoSchedule},
		{"a taint drives pods out", taintNoExecute},
		{"a node that is cordoned", cordon},
		{"anti-affinity parts pods", antiAffinity},
	}
}

func (s *space) evict(t *testing.T, pod string) error {
	t.Helper()
	return s.api.CoreV1().Pods(s.ns).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: s.ns}})
}

func eviction(t *testing.T, s *space) {
	s.create(t, s.ns, deployment(1, pod("evicted", sleeper("main"))))
	waitFor(t, s.cluster, deployments(s.ns, "evicted"), "is available", available(1))
	victim := s.list(t, "app=evicted")[0].Name
	if err := s.evict(t, victim); err != nil {
		t.Fatal(err)
	}
	gone(t, s.cluster, pods(s.ns, victim))
	waitFor(t, s.cluster, deployments(s.ns, "evicted"), "is available again", available(1))
}

func (s *space) budget(t *testing.T, app string, least int32) {
	t.Helper()
	s.create(t, s.ns, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(least)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}})
	waitFor(t, s.cluster, budgets(s.ns, app), "is counted", func(b *policyv1.PodDisruptionBudget) bool {
		return b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0 && b.Status.CurrentHealthy == b.Status.ExpectedPods
	})
}

func budget(t *testing.T, s *space) {
	s.create(t, s.ns, deployment(2, pod("budget", sleeper("main"))))
	waitFor(t, s.cluster, deployments(s.ns, "budget"), "is available", available(2))
	s.budget(t, "budget", 2)
	if err := s.evict(t, s.list(t, "app=budget")[0].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("%v", err)
	}
}

func (c *cluster) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	patch(t, c, nodes(node), fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on))
	waitFor(t, c, nodes(node), "is cordoned or not", func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }) == on
	})
}

// drain moves all pods of a Deployment to the other node, one at a time by its budget, and never
// has fewer running.
func drain(t *testing.T, s *space) {
	p := pod("moves", sleeper("main"))
	s.create(t, s.ns, deployment(4, p))
	d := deployments(s.ns, "moves")
	waitFor(t, s.cluster, d, "is available", available(4))
	s.budget(t, "moves", 3)
	s.cordon(t, "node1", true)
	t.Cleanup(func() {
		_, _ = s.api.CoreV1().Nodes().Patch(context.Background(), "node1", "application/merge-patch+json", []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{})
	})
	eventually(t, "node1 has none left", func() bool {
		left := 0
		for _, p := range s.list(t, "app=moves") {
			if p.Spec.NodeName != "node1" {
				continue
			}
			left++
			if err := s.evict(t, p.Name); err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		return left == 0
	})
	waitFor(t, s.cluster, d, "is available again", available(4))
	s.cordon(t, "node1", false)
}

func (c *cluster) taint(t *testing.T, node string, effect corev1.TaintEffect) {
	t.Helper()
	patch(t, c, nodes(node), fmt.Sprintf(`{"spec":{"taints":[{"key":"example.org/t","value":"v","effect":%q}]}}`, effect))
	t.Cleanup(func() {
		_, err := c.api.CoreV1().Nodes().Patch(context.Background(), node, "application/merge-patch+json", []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
}

func unschedulable(p *corev1.Pod) bool {
	return condition(p, corev1.PodScheduled) == corev1.ConditionFalse
}

func tolerant(p *corev1.Pod, seconds *int64, effect corev1.TaintEffect) *corev1.Pod {
	p.Spec.Tolerations = []corev1.Toleration{{Key: "example.org/t", Operator: corev1.TolerationOpExists, Effect: effect, TolerationSeconds: seconds}}
	return p
}

// keptAway makes pods for a node until one finds no place there, and returns its name: nothing
// announces that the scheduler has seen a change.
func (s *space) keptAway(t *testing.T, n *node) string {
	t.Helper()
	name, i := "", 0
	eventually(t, "a pod finds no place on "+n.name, func() bool {
		i++
		name = fmt.Sprintf("kept-away-%d", i)
		s.create(t, s.ns, on(n, pod(name, sleeper("main"))))
		return unschedulable(s.wait(t, name, "is judged", func(p *corev1.Pod) bool { return condition(p, corev1.PodScheduled) != "" }))
	})
	return name
}

func taintNoSchedule(t *testing.T, s *space) {
	s.taint(t, "node2", corev1.TaintEffectNoSchedule)
	s.keptAway(t, s.nodes[1])
	s.run(t, tolerant(on(s.nodes[1], pod("tolerant", sleeper("main"))), nil, corev1.TaintEffectNoSchedule))
}

func taintNoExecute(t *testing.T, s *space) {
	s.run(t, on(s.nodes[1], pod("driven-out", sleeper("main"))))
	s.run(t, tolerant(on(s.nodes[1], pod("later", sleeper("main"))), ptr.To(int64(3)), corev1.TaintEffectNoExecute))
	s.run(t, tolerant(on(s.nodes[1], pod("stays", sleeper("main"))), nil, corev1.TaintEffectNoExecute))
	s.taint(t, "node2", corev1.TaintEffectNoExecute)
	gone(t, s.cluster, pods(s.ns, "driven-out"))
	gone(t, s.cluster, pods(s.ns, "later"))
	s.wait(t, "stays", "is ready", ready)
}

func cordon(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("before", sleeper("main"))))
	s.cordon(t, "node1", true)
	t.Cleanup(func() {
		_, _ = s.api.CoreV1().Nodes().Patch(context.Background(), "node1", "application/merge-patch+json", []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{})
	})
	after := s.keptAway(t, s.nodes[0])
	s.cordon(t, "node1", false)
	s.wait(t, after, "is ready", ready)
	s.wait(t, "before", "is ready", ready)
}

func antiAffinity(t *testing.T, s *space) {
	p := pod("apart", sleeper("main"))
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
	}}}}
	s.create(t, s.ns, deployment(3, p))
	var waiting string
	eventually(t, "two run apart and one has no place", func() bool {
		run := map[string]bool{}
		waiting = ""
		for _, p := range s.list(t, "app=apart") {
			if ready(&p) {
				run[p.Spec.NodeName] = true
			} else if unschedulable(&p) {
				waiting = p.Name
			}
		}
		return len(run) == 2 && waiting != ""
	})
}
