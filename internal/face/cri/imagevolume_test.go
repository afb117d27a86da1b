package cri

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// spec reads the container's spec from its bundle.
func (n *testNode) spec(tb testing.TB, id string) *specs.Spec {
	tb.Helper()
	c, err := n.As(core.OwnerCRI).Container(tb.Context(), core.ID(id))
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		tb.Fatal(err)
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(raw, s); err != nil {
		tb.Fatal(err)
	}
	return s
}

func mountAt(s *specs.Spec, target string) *specs.Mount {
	if i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target }); i >= 0 {
		return &s.Mounts[i]
	}
	return nil
}

func imageVolume(target, image, sub string) *v1.Mount {
	return &v1.Mount{ContainerPath: target, Readonly: true, Image: &v1.ImageSpec{Image: image}, ImageSubPath: sub}
}

func TestImageVolumes(t *testing.T) {
	n := newTestNode(t)
	data := n.AddImage("data:1", imagespec.ImageConfig{}, map[string]string{"model/weights": "much", "other": "x"})
	pod := n.pod(t, "web")
	req := n.containerRequest(pod, "app")
	below := t.TempDir()
	req.Config.Mounts = []*v1.Mount{
		{ContainerPath: "/data/model/own", HostPath: below},
		imageVolume("/data", string(data.ID), ""), imageVolume("/models", "data:1", "model"),
	}
	r, err := n.CreateContainer(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	s := n.spec(t, r.ContainerId)
	for target, file := range map[string]string{"/data": "model/weights", "/models": "weights"} {
		m := mountAt(s, target)
		if m == nil || !slices.Contains(m.Options, "ro") {
			t.Fatalf("%s: %+v", target, m)
		}
		if b, err := os.ReadFile(filepath.Join(m.Source, file)); err != nil || string(b) != "much" {
			t.Errorf("%s: %q, %v", target, b, err)
		}
	}
	at := func(target string) int {
		return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
	}
	if at("/data") > at("/data/model/own") {
		t.Error("an image volume hides what is mounted in it")
	}
	var refs []string
	for _, m := range n.status(t, r.ContainerId).GetMounts() {
		refs = append(refs, m.GetImage().GetImageRef())
	}
	if want := []string{"", string(data.ID), string(data.ID)}; !slices.Equal(refs, want) {
		t.Errorf("image refs %q, want %q", refs, want)
	}
	n.Clean()
	if _, err := n.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: r.ContainerId}); err != nil {
		t.Fatal(err)
	}
	n.Clean()
	for _, m := range s.Mounts {
		if m.Type == "bind" && m.Source != below {
			if _, err := os.Stat(filepath.Join(m.Source, "weights")); err == nil {
				t.Errorf("%s is still there", m.Source)
			}
		}
	}
}

func TestBadImageVolumesAreRefusedAndLeaveNothing(t *testing.T) {
	n := newTestNode(t)
	n.AddImage("data:1", imagespec.ImageConfig{}, map[string]string{"model/weights": "much"})
	pod := n.pod(t, "web")
	before := n.Left()
	writable, bidirectional, both := imageVolume("/v", "data:1", ""), imageVolume("/v", "data:1", ""), imageVolume("/v", "data:1", "")
	writable.Readonly = false
	bidirectional.Propagation = v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
	both.HostPath = "/etc"
	for name, c := range map[string]struct {
		mount *v1.Mount
		code  codes.Code
	}{
		"writable":      {writable, codes.InvalidArgument},
		"bidirectional": {bidirectional, codes.InvalidArgument},
		"host path too": {both, codes.InvalidArgument},
		"no target":     {imageVolume("", "data:1", ""), codes.InvalidArgument},
		"leads out":     {imageVolume("/v", "data:1", "../../etc"), codes.InvalidArgument},
		"not there":     {imageVolume("/v", "data:1", "missing"), codes.NotFound},
		"no such image": {imageVolume("/v", "none:1", ""), codes.NotFound},
	} {
		req := n.containerRequest(pod, "app")
		req.Config.Mounts = []*v1.Mount{c.mount}
		_, err := n.CreateContainer(t.Context(), req)
		wantCode(t, name, err, c.code)
		n.Clean()
	}
	if after := n.Left(); !slices.Equal(before, after) {
		t.Errorf("left behind: %q, before %q", after, before)
	}
}

func TestCDIDevicesAreAskedForByName(t *testing.T) {
	n := newTestNode(t)
	req := n.containerRequest(n.pod(t, "web"), "app")
	req.Config.CDIDevices = []*v1.CDIDevice{{Name: "example.com/net=one"}, {Name: "example.com/net=two"}}
	req.Config.Annotations = map[string]string{
		"cdi.k8s.io/plugin_2": "example.com/net=four", "cdi.k8s.io/plugin_1": "example.com/net=two,example.com/net=three", "example.com/cdi": "example.com/net=five",
	}
	r, err := n.CreateContainer(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.As(core.OwnerCRI).Container(t.Context(), core.ID(r.ContainerId))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com/net=one", "example.com/net=two", "example.com/net=three", "example.com/net=four"}; !slices.Equal(c.Config.CDI, want) {
		t.Errorf("asked for %q", c.Config.CDI)
	}
	for _, text := range []string{"", "one", "net=one", "example.com/net", "example.com/net=", "/net=one", "example.com/net=one,"} {
		req := n.containerRequest(n.pod(t, "w"+fmt.Sprint(len(text))), "app")
		req.Config.Annotations = map[string]string{"cdi.k8s.io/x": text}
		_, err := n.CreateContainer(t.Context(), req)
		wantCode(t, text, err, codes.InvalidArgument)
	}
}
