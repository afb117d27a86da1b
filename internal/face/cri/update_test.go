package cri

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

func TestCheckpointsAreRefusedWithTheReason(t *testing.T) {
	for _, s := range []*server{{}, {checkpoint: func(context.Context) error { return errors.New("no criu") }}} {
		_, container := s.CheckpointContainer(t.Context(), &v1.CheckpointContainerRequest{ContainerId: "c"})
		_, pod := s.CheckpointPod(t.Context(), &v1.CheckpointPodRequest{PodSandboxId: "p"})
		_, restore := s.RestorePod(t.Context(), &v1.RestorePodRequest{})
		for _, err := range []error{container, pod, restore} {
			if !errdefs.IsNotImplemented(err) || strings.Contains(err.Error(), "no criu") != (s.checkpoint != nil) {
				t.Error(err)
			}
		}
	}
}

// TestUpdatedSandboxResourcesAreTold: and a retry of the create still finds the sandbox, with its
// labels.
func TestUpdatedSandboxResourcesAreTold(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	told := func() (r struct {
		Config struct {
			Linux struct {
				Overhead, Resources struct {
					CPUShares int64 `json:"cpu_shares"`
					Memory    int64 `json:"memory_limit_in_bytes"`
				}
			}
		}
	},
	) {
		t.Helper()
		s, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(s.Info["info"]), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	update := func(req *v1.UpdatePodSandboxResourcesRequest) error {
		_, err := n.UpdatePodSandboxResources(ctx, req)
		return err
	}
	before, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	if err := update(&v1.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Overhead: &v1.LinuxContainerResources{CpuShares: 7}}); err != nil {
		t.Fatal(err)
	}
	if err := update(&v1.UpdatePodSandboxResourcesRequest{PodSandboxId: pod[:12], Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	if l := told().Config.Linux; l.Overhead.CPUShares != 7 || l.Resources.Memory != 1<<20 {
		t.Errorf("%+v", l)
	}
	after, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || len(after.Status.Labels) != len(before.Status.Labels) || after.Status.Metadata.Name != "p" {
		t.Errorf("%v, %v", after, err)
	}
	if again := n.pod(t, "p"); again != pod {
		t.Errorf("a retry of the create gives %s, not %s", again, pod)
	}
	for code, req := range map[codes.Code]*v1.UpdatePodSandboxResourcesRequest{
		codes.NotFound:        {PodSandboxId: "nobody"},
		codes.InvalidArgument: {PodSandboxId: pod, Resources: &v1.LinuxContainerResources{CpuQuota: -7}},
	} {
		if err := update(req); status.Code(err) != code {
			t.Errorf("%v: %v, want %s", req, err, code)
		}
	}
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if err := update(&v1.UpdatePodSandboxResourcesRequest{PodSandboxId: pod}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("of a stopped sandbox: %v", err)
	}
}
