package cri

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestMetricsOverTheWire: each metric of a ready pod and its running containers was described, with
// as many labels.
func TestMetricsOverTheWire(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	run := n.running(t, pod, "run")
	n.container(t, pod, "created")
	stopped := n.pod(t, "q")
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: stopped}); err != nil {
		t.Fatal(err)
	}
	c, err := n.As(core.OwnerCRI).Container(ctx, core.ID(run))
	if err != nil {
		t.Fatal(err)
	}
	n.Cgroups.SetStats(c.Cgroup, core.Stats{CPU: core.CPUStats{Usage: core.Known(7e9)}, Pids: core.PidsStats{Current: core.Known(2)}})
	n.Network.SetStats(c.Sandbox, core.NetStats{Name: "eth0", RxBytes: 9})
	descs, err := n.ListMetricDescriptors(ctx, &v1.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]int{}
	for _, d := range descs.Descriptors {
		labels[d.Name] = len(d.LabelKeys)
	}
	list, err := n.ListPodSandboxMetrics(ctx, &v1.ListPodSandboxMetricsRequest{})
	if err != nil || len(list.PodMetrics) != 1 || list.PodMetrics[0].PodSandboxId != pod || len(list.PodMetrics[0].ContainerMetrics) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	of := func(ms []*v1.Metric, name string) *v1.Metric {
		var found *v1.Metric
		for _, m := range ms {
			if got, ok := labels[m.Name]; !ok || got != len(m.LabelValues) {
				t.Errorf("%v was not described so", m)
			}
			if m.Name == name {
				found = m
			}
		}
		if found == nil {
			t.Fatalf("no %s in %v", name, ms)
		}
		return found
	}
	inside := list.PodMetrics[0].ContainerMetrics[0]
	if inside.ContainerId != run || of(inside.Metrics, "container_cpu_usage_seconds_total").Value.Value != 7 || of(inside.Metrics, "container_threads").Value.Value != 2 {
		t.Errorf("%v", inside)
	}
	want := []string{"run", c.Cgroup.Path, "redis:7", run, "default", "p"}
	if d := cmp.Diff(want, of(inside.Metrics, "container_threads").LabelValues); d != "" {
		t.Errorf("labels: %s", d)
	}
	rx := of(list.PodMetrics[0].Metrics, "container_network_receive_bytes_total")
	if rx.Value.Value != 9 || rx.LabelValues[0] != "" || rx.LabelValues[3] != "eth0" {
		t.Errorf("%v", rx)
	}
	stream, err := n.StreamPodSandboxMetrics(ctx, &v1.StreamPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var streamed []*v1.PodSandboxMetrics
	for m, err := stream.Recv(); !errors.Is(err, io.EOF); m, err = stream.Recv() {
		if err != nil {
			t.Fatal(err)
		}
		streamed = append(streamed, m.PodSandboxMetrics...)
	}
	opt := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == `["value"]` }, cmp.Ignore()) // seconds pass
	if d := cmp.Diff(list.PodMetrics, streamed, protocmp.Transform(), opt); d != "" {
		t.Error(d)
	}
}

// TestPodNetworkFigures: kubelet's own summary is made of these.
func TestPodNetworkFigures(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	n.Network.SetStats(core.ID(pod), core.NetStats{Name: "eth0", RxBytes: 1, TxBytes: 2, RxErrors: 3, TxErrors: 4})
	one, err := n.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	d := one.Stats.Linux.Network.GetDefaultInterface()
	if d.GetName() != "eth0" || d.RxBytes.GetValue() != 1 || d.TxBytes.GetValue() != 2 || d.RxErrors.GetValue() != 3 || d.TxErrors.GetValue() != 4 {
		t.Errorf("%v", one.Stats.Linux.Network)
	}
	list, err := n.ListPodSandboxStats(t.Context(), &v1.ListPodSandboxStatsRequest{})
	if err != nil || len(list.Stats) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if diff := cmp.Diff(d, list.Stats[0].Linux.Network.GetDefaultInterface(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
