package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
	"github.com/longshore/longshore/test/traces/collector"
)

// TestTraces: kubelet and agent send their spans to one collector, where the start of a pod is one tree, from kubelet's syncPod to the
// stages of the agent.
func TestTraces(t *testing.T) { isolated(t, traced) }

func traced(t *testing.T) {
	all := collector.Start(t)
	n := start(t, options{
		config: map[string]any{"tracing": map[string]any{"endpoint": all.Addr, "samplingRatePerMillion": 1_000_000}},
		agent:  fmt.Sprintf("[traces]\nendpoint = %q\n", all.Addr),
	})
	n.run(t, pod("traced", shell("main", idle)))
	root := func(s collector.Span) bool {
		return s.Service == "kubelet" && s.GetName() == "syncPod" && s.Attribute("k8s.pod") == "default/traced-node"
	}
	var tree map[string]collector.Span
	var names []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the pod's trace: %q", names)
			for _, s := range all.Spans(root) {
				t.Logf("%s", s.Span)
			}
			seen := map[string]int{}
			for _, s := range all.Spans(func(collector.Span) bool { return true }) {
				seen[s.Service+": "+s.GetName()]++
			}
			t.Logf("all spans: %v", seen)
		}
	})
	// Both send their spans in batches.
	nodetest.Eventually(t, "the spans of the pod's start are there, each with its parent", func() bool {
		for _, r := range all.Spans(root) {
			tree, names = map[string]collector.Span{}, nil
			for _, s := range all.Spans(func(s collector.Span) bool { return s.Trace == r.Trace }) {
				tree[s.ID] = s
				names = append(names, s.Service+": "+s.GetName())
			}
			whole := !slices.ContainsFunc(slices.Collect(maps.Values(tree)), func(s collector.Span) bool { return s.Parent != "" && tree[s.Parent].ID == "" })
			if whole && slices.Contains(names, "longshore: cri StartContainer") {
				return true
			}
		}
		return false
	})
	for _, s := range tree {
		if s.Parent == "" && !root(s) {
			t.Errorf("%s: %s is another root", s.Service, s.GetName())
		}
	}
	// Each call of the agent is directly below kubelet's span of it.
	for _, call := range []string{"ImageService/PullImage", "RuntimeService/RunPodSandbox", "RuntimeService/CreateContainer", "RuntimeService/StartContainer"} {
		_, method, _ := strings.Cut(call, "/")
		found := 0
		for _, s := range tree {
			if s.Service == "longshore" && s.GetName() == "cri "+method {
				found++
				if up := tree[s.Parent]; up.Service != "kubelet" || up.GetName() != "runtime.v1."+call {
					t.Errorf("%s is below %s: %s", s.GetName(), up.Service, up.GetName())
				}
			}
		}
		if found != 1 {
			t.Errorf("%d spans of %s, want 1", found, method)
		}
	}
	for _, stage := range []string{"create_sandbox.network", "create.root", "create.launch", "start.launch"} {
		if !slices.Contains(names, "longshore: "+stage) {
			t.Errorf("no span %s", stage)
		}
	}
}
