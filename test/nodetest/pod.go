package nodetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
)

// Pod is a sandbox made over CRI.
type Pod struct {
	ID     string
	Config *runtimeapi.PodSandboxConfig
	n      *Node
}

// Container is a container made over CRI.
type Container struct {
	ID  string
	Log string // path of its log file
	Pod *Pod
}

// PodConfig is a small sandbox config as kubelet would send it.
func (n *Node) PodConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "test", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(n.Dir, "logs", name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "",
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

// RunPod runs a sandbox.
func (n *Node) RunPod(t *testing.T, cfg *runtimeapi.PodSandboxConfig) *Pod {
	t.Helper()
	r, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatalf("RunPodSandbox %s: %v", cfg.GetMetadata().GetName(), err)
	}
	return n.Pod(r.GetPodSandboxId(), cfg)
}

// Pod is a sandbox that was made from cfg under the given id.
func (n *Node) Pod(id string, cfg *runtimeapi.PodSandboxConfig) *Pod {
	return &Pod{ID: id, Config: cfg, n: n}
}

// ContainerConfig is a small container config.
func ContainerConfig(name, image string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: image},
		Command:  command,
		LogPath:  name + ".log",
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}
}

// Create makes a container.
func (p *Pod) Create(t *testing.T, cfg *runtimeapi.ContainerConfig) *Container {
	t.Helper()
	r, err := p.n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
	if err != nil {
		t.Fatalf("CreateContainer %s: %v", cfg.GetMetadata().GetName(), err)
	}
	return p.Container(r.GetContainerId(), cfg)
}

// Container is one that was made from cfg under the given id.
func (p *Pod) Container(id string, cfg *runtimeapi.ContainerConfig) *Container {
	return &Container{ID: id, Log: filepath.Join(p.Config.GetLogDirectory(), cfg.GetLogPath()), Pod: p}
}

// Run makes a container and starts it.
func (p *Pod) Run(t *testing.T, cfg *runtimeapi.ContainerConfig) *Container {
	t.Helper()
	c := p.Create(t, cfg)
	if _, err := p.n.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatalf("StartContainer %s: %v", cfg.GetMetadata().GetName(), err)
	}
	return c
}

// Remove stops and removes the sandbox.
func (p *Pod) Remove(t *testing.T) {
	t.Helper()
	if _, err := p.n.CRI.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatalf("StopPodSandbox: %v", err)
	}
	if _, err := p.n.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatalf("RemovePodSandbox: %v", err)
	}
}

// Status asks for the container's status.
func (c *Container) Status(t *testing.T) *runtimeapi.ContainerStatus {
	t.Helper()
	r, err := c.Pod.n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		t.Fatalf("ContainerStatus: %v", err)
	}
	return r.GetStatus()
}

// WaitExited waits until the container has ended and returns its status.
func (c *Container) WaitExited(t *testing.T) *runtimeapi.ContainerStatus {
	t.Helper()
	var st *runtimeapi.ContainerStatus
	Eventually(t, fmt.Sprintf("container %s exited", c.ID), func() bool {
		st = c.Status(t)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

// ReadLog returns the container's log file as it is.
func (c *Container) ReadLog(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Finding returns doctor's finding of a name.
func (n *Node) Finding(t *testing.T, name string) string {
	t.Helper()
	out, err := n.CLI("doctor", "--json") // which fails if anything is wrong
	var all []struct{ Name, Detail string }
	if perr := json.Unmarshal([]byte(out), &all); perr != nil {
		t.Fatalf("%v, %v: %s", err, perr, out)
	}
	for _, f := range all {
		if f.Name == name {
			return f.Detail
		}
	}
	t.Fatalf("doctor says nothing of %s: %s", name, out)
	return ""
}
