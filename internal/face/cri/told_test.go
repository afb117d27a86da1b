package cri

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestEveryChangeIsToldAtOnce asks for lists and statuses before and after each change of a pod: no
// outdated answer may come again.
func TestEveryChangeIsToldAtOnce(t *testing.T) {
	n := newTestNode(t)
	other := n.pod(t, "other") // nothing happens to it
	n.running(t, other, "c")
	var pod, id string
	said := map[string]proto.Message{}
	ask := func() map[string]proto.Message {
		t.Helper()
		now := map[string]proto.Message{}
		put := func(name string, m proto.Message, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			now[name] = m
		}
		containers, err := n.ListContainers(t.Context(), &v1.ListContainersRequest{})
		put("containers", containers, err)
		pods, err := n.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
		put("pods", pods, err)
		if pod != "" {
			s, err := n.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: pod})
			s.Timestamp = 0
			put("pod status", s, err)
		}
		if id != "" {
			s := n.status(t, id)
			put("status", s, nil)
			for _, c := range containers.Containers {
				if c.Id == id && c.State != s.State {
					t.Errorf("listed as %s, its status is %s", c.State, s.State)
				}
			}
		}
		return now
	}
	// step calls do, and wants exactly the answers of differ to change.
	step := func(what string, do func(), differ ...string) {
		t.Helper()
		do()
		now := ask()
		changed := map[string]bool{}
		for _, name := range differ {
			changed[name] = true
		}
		for name, m := range now {
			was := said[name]
			same := was != nil && cmp.Diff(was, m, protocmp.Transform()) == ""
			if was != nil && same == changed[name] {
				t.Errorf("%s: %s is the same: %t; it says %v", what, name, same, m)
			}
		}
		said = now
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step("nothing yet", func() {})
	step("a pod", func() { pod = n.pod(t, "p") }, "pods")
	step("a container", func() { id = n.container(t, pod, "c") }, "containers", "pod status")
	step("its start", func() {
		_, err := n.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		must(err)
	}, "containers", "status", "pod status")
	step("its limits", func() {
		_, err := n.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 3 << 20},
		})
		must(err)
	}, "status", "pod status")
	step("its end", func() { n.exit(t, id, core.Exit{Code: 3}) }, "containers", "status", "pod status")
	step("its removal", func() {
		_, err := n.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
		must(err)
		id = ""
	}, "containers", "pod status")
	step("the pod's end", func() {
		_, err := n.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: pod})
		must(err)
	}, "pods", "pod status")
	step("the pod's removal", func() {
		_, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod})
		must(err)
		pod = ""
	}, "pods")
}
