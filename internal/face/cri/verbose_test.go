package cri

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

// decodeInfo reads the document "info" of a verbose answer.
func decodeInfo(t *testing.T, info map[string]string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(info["info"]), into); err != nil {
		t.Fatalf("%v: %v", info, err)
	}
}

// TestVerboseAnswers reads the fields that agents for containerd read, of an object in each state,
// and finds no variable's value in any.
func TestVerboseAnswers(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	req := n.containerRequest(pod, "c")
	req.Config.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{CpuShares: 512}}
	req.Config.Envs = []*v1.KeyValue{{Key: "TOKEN", Value: []byte("s3cret")}}
	created, err := n.CreateContainer(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	id := created.ContainerId
	type facts struct {
		SandboxID, RuntimeType, SnapshotKey, Snapshotter string
		Removing, HasPid                                 bool
		Env                                              []string
		Shares                                           uint64
		Name                                             string
		Namespaces                                       bool
	}
	look := func() facts {
		t.Helper()
		s, err := n.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(s.Info["info"], "s3cret") {
			t.Errorf("a variable's value is shown: %s", s.Info["info"])
		}
		var doc struct {
			SandboxID, RuntimeType, SnapshotKey, Snapshotter string
			Removing                                         bool
			Pid                                              int
			Config                                           struct{ Metadata struct{ Name string } }
			RuntimeSpec                                      struct {
				Process struct{ Env []string }
				Linux   struct {
					Namespaces []struct{ Type, Path string }
					Resources  struct{ CPU struct{ Shares uint64 } }
				}
			}
		}
		decodeInfo(t, s.Info, &doc)
		f := facts{
			SandboxID: doc.SandboxID, RuntimeType: doc.RuntimeType, SnapshotKey: doc.SnapshotKey, Snapshotter: doc.Snapshotter, Removing: doc.Removing,
			HasPid: doc.Pid > 0, Shares: doc.RuntimeSpec.Linux.Resources.CPU.Shares, Name: doc.Config.Metadata.Name,
		}
		for _, e := range doc.RuntimeSpec.Process.Env {
			if strings.HasPrefix(e, "TOKEN") {
				f.Env = append(f.Env, e)
			}
		}
		for _, ns := range doc.RuntimeSpec.Linux.Namespaces {
			f.Namespaces = f.Namespaces || ns.Type == "network" && ns.Path != ""
		}
		return f
	}
	want := facts{
		SandboxID: pod, RuntimeType: "fake", SnapshotKey: id, Snapshotter: "overlayfs", Env: []string{"TOKEN="}, Shares: 512, Name: "c", Namespaces: true,
		HasPid: true, // it waits to be started
	}
	if d := cmp.Diff(want, look()); d != "" {
		t.Errorf("created (-want +got):\n%s", d)
	}
	if _, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.UpdateContainerResources(ctx, &v1.UpdateContainerResourcesRequest{ContainerId: id, Linux: &v1.LinuxContainerResources{CpuShares: 777}}); err != nil {
		t.Fatal(err)
	}
	want.Shares = 777
	if d := cmp.Diff(want, look()); d != "" {
		t.Errorf("running, updated (-want +got):\n%s", d)
	}
	pid := func() (p struct {
		Pid                int
		ProcessStatus      string
		NetNamespaceClosed bool
	},
	) {
		t.Helper()
		s, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		decodeInfo(t, s.Info, &p)
		return p
	}
	if p := pid(); p.Pid == 0 || p.ProcessStatus != "running" || p.NetNamespaceClosed {
		t.Errorf("of a pod that runs: %+v", p)
	}
	if _, err := n.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	want.HasPid = false
	if d := cmp.Diff(want, look()); d != "" {
		t.Errorf("stopped (-want +got):\n%s", d)
	}
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if p := pid(); p.Pid != 0 || p.ProcessStatus != "deleted" || !p.NetNamespaceClosed {
		t.Errorf("of a pod that has stopped: %+v", p)
	}
}

// TestVerboseStatus has the runtimes where containerd has them.
func TestVerboseStatus(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.Handlers["class"] = "fake" })
	s, err := n.Status(t.Context(), &v1.StatusRequest{Verbose: true})
	if err != nil || s.Info["lastCNILoadStatus"] != "OK" || !strings.HasPrefix(s.Info["golang"], `"go1`) {
		t.Errorf("%v, %v", s.GetInfo(), err)
	}
	var config struct {
		Containerd struct {
			DefaultRuntimeName string
			Runtimes           map[string]struct {
				RuntimeType string
				Options     struct{ SystemdCgroup *bool }
			}
		}
	}
	if err := json.Unmarshal([]byte(s.Info["config"]), &config); err != nil {
		t.Fatal(err)
	}
	r := config.Containerd.Runtimes
	if config.Containerd.DefaultRuntimeName != "fake" || r["fake"].RuntimeType != "fake" || r["class"].RuntimeType != "fake" || r["fake"].Options.SystemdCgroup == nil {
		t.Errorf("%+v", config)
	}
	n.Network.Fail(func(string) error { return errors.New("no plugin") })
	if s, err := n.Status(t.Context(), &v1.StatusRequest{Verbose: true}); err != nil || s.Info["lastCNILoadStatus"] != "no plugin" {
		t.Errorf("without a network: %v, %v", s.GetInfo(), err)
	}
}
