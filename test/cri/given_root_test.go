package cri

import (
	"context"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// imageVolumes shows an image, and a part of it, beside another root; they stay
// when the agent dies, and go with the container.
func (s *suite) imageVolumes(t *testing.T) {
	image := func(target, sub string) *v1.Mount {
		return &v1.Mount{ContainerPath: target, Readonly: true, Image: &v1.ImageSpec{Image: s.image}, ImageSubPath: sub}
	}
	below := t.TempDir()
	c := s.run(t, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{image("/whole", ""), image("/part", "bin"), {HostPath: below, ContainerPath: "/whole/tmp"}}
	})
	s.want(t, c, "/whole/bin/echo run; test -e /part/sh && echo there; ls /part/bin | wc -l", "run\nthere\nls: /part/bin: No such file or directory\n0")
	s.wantHas(t, c, "touch /whole/x", "Read-only file system")
	s.want(t, c, "touch /whole/tmp/x && ls /whole/tmp", "x")
	s.n.Kill()
	s.n.Up()
	s.want(t, c, "test -e /part/sh && echo there", "there")
	for _, m := range c.Status(t).GetMounts()[:2] {
		if !strings.HasPrefix(m.GetImage().GetImageRef(), "sha256:") {
			t.Errorf("%s: image ref %q", m.GetContainerPath(), m.GetImage().GetImageRef())
		}
	}
	p := s.pod(t)
	cfg := s.config()
	cfg.Mounts = []*v1.Mount{image("/part", "missing")}
	_, err := s.n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a sub-path that is not in the image: %v", err)
	}
	s.n.Check()
}

// ofRuntimeClass runs a pod with a device by the handler nvidia, which the node's configuration maps to
// its runtime.
func (s *suite) ofRuntimeClass(t *testing.T) {
	t.Helper()
	pod := s.n.PodConfig(s.handler.GetName() + "-class")
	r, err := s.n.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod, RuntimeHandler: "nvidia"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.n.CRI.RemovePodSandbox(context.Background(), &v1.RemovePodSandboxRequest{PodSandboxId: r.GetPodSandboxId()}); err != nil {
			t.Error(err)
		}
	})
	cfg := s.config()
	cfg.Annotations = map[string]string{"cdi.k8s.io/example_black": "example.com/hole=black"}
	c, err := s.n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: r.GetPodSandboxId(), Config: cfg, SandboxConfig: pod})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.n.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	s.want(t, &nodetest.Container{ID: c.GetContainerId()}, "test -c /dev/hole && echo there", "there")
}

// cdi gives a device by its name.
func (s *suite) cdi(t *testing.T) {
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	const file = `{"cdiVersion": "0.5.0", "kind": "example.com/hole", "devices": [{"name": "black", "containerEdits": {
		"env": ["HOLE=black"], "deviceNodes": [{"path": "/dev/hole", "hostPath": "/dev/null"}]}}]}`
	if err := os.WriteFile("/var/run/cdi/example.json", []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	c := s.run(t, func(c *v1.ContainerConfig) { c.CDIDevices = []*v1.CDIDevice{{Name: "example.com/hole=black"}} })
	s.want(t, c, "echo gone > /dev/hole && test -c /dev/hole && wc -c < /dev/hole; cat /proc/1/environ | tr '\\0' '\\n' | grep HOLE", "0\nHOLE=black")
	c = s.run(t, func(c *v1.ContainerConfig) {
		c.Annotations = map[string]string{"cdi.k8s.io/example_black": "example.com/hole=black"}
	})
	s.want(t, c, "test -c /dev/hole; cat /proc/1/environ | tr '\\0' '\\n' | grep HOLE", "HOLE=black")
	s.ofRuntimeClass(t)
	for name, ask := range map[string]func(c *v1.ContainerConfig){
		"field": func(c *v1.ContainerConfig) { c.CDIDevices = []*v1.CDIDevice{{Name: "example.com/hole=white"}} },
		"annotation": func(c *v1.ContainerConfig) {
			c.Annotations = map[string]string{"cdi.k8s.io/x": "example.com/hole=white"}
		},
	} {
		p := s.pod(t)
		cfg := s.config()
		ask(cfg)
		_, err := s.n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
		if status.Code(err) != codes.NotFound {
			t.Errorf("a device that no vendor has, by %s: %v", name, err)
		}
	}
}
