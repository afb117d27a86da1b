package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestTheEngineOwnsItsPartOfTheSpec checks the spec that the runtime gets.
func TestTheEngineOwnsItsPartOfTheSpec(t *testing.T) {
	n := enginetest.New(t)
	client := n.As(core.OwnerCRI)
	img := n.AddImage("busybox", ocispec.ImageConfig{StopSignal: "SIGQUIT"}, map[string]string{"etc/passwd": "x", "data/seed": "s"})
	shared := core.Namespace{Mode: core.Shared}
	sb, err := client.CreateSandbox(t.Context(), core.SandboxConfig{
		Key: "pod", Hostname: "h", Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: core.Namespace{Mode: core.Host}, PID: shared},
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := n.Runtime.Spec(sb.ID)
	if want := []string{"/.init", "init"}; !slices.Equal(spec.Process.Args, want) || sb.Init == 0 {
		t.Errorf("sandbox init: %v, pid %d", spec.Process.Args, sb.Init)
	}
	first := n.Running(sb, "first", img, "sleep")
	c, err := client.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID, ReadOnly: true}, Init: true,
		Join:    []core.Join{{Namespace: specs.PIDNamespace, Container: first.ID}},
		Volumes: []core.VolumeMount{{Name: "v", Target: "/data"}},
		Spec: func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
			b, err := r.FS.ReadFile("etc/passwd")
			if err != nil || string(b) != "x" || r.Image.StopSignal != "SIGQUIT" || r.Sandbox.ID != sb.ID || r.ID == "" {
				t.Errorf("rootfs: %q %v %+v", b, err, r)
			}
			return &specs.Spec{
				Version: "9", Hostname: "mine", Process: &specs.Process{Args: []string{"prog", "arg"}},
				Mounts: []specs.Mount{{Destination: "/dev/shm", Type: "tmpfs"}, {Destination: "/etc/hosts", Type: "bind", Source: "/theirs"}},
				Linux:  &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace}, {Type: specs.TimeNamespace}}},
			}, nil, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	spec = n.Runtime.Spec(c.ID)
	if spec.Version != "1.0.2" || spec.Hostname != "" || !spec.Root.Readonly || spec.Linux.CgroupsPath != c.Cgroup.Path {
		t.Errorf("%+v", spec)
	}
	if want := []string{"/dev/.init", "init", "prog", "arg"}; !slices.Equal(spec.Process.Args, want) || !slices.Equal(c.Main.Args, want[2:]) {
		t.Errorf("args %v, on record %v", spec.Process.Args, c.Main.Args)
	}
	if c.Config.Stop.Signal != "SIGQUIT" {
		t.Errorf("stop signal %q", c.Config.Stop.Signal)
	}
	var kinds []string
	for _, ns := range spec.Linux.Namespaces {
		kinds = append(kinds, string(ns.Type)+map[bool]string{true: "+path"}[ns.Path != ""])
	}
	if d := cmp.Diff([]string{"mount", "time", "network+path", "ipc+path", "pid+path", "cgroup"}, kinds); d != "" {
		t.Error(d)
	}
	mounts := map[string]string{}
	for _, m := range spec.Mounts {
		mounts[m.Destination] = m.Source
	}
	vol, err := n.Volumes.Get(t.Context(), core.OwnerCRI, "v")
	if err != nil || !vol.Filled {
		t.Errorf("%+v, %v", vol, err)
	}
	want := map[string]string{
		"/etc/hosts": "/theirs", "/etc/resolv.conf": "", "/dev/shm": filepath.Join(sb.Dir, "shm"), "/data": vol.Path, "/dev/.init": n.Options.Init,
	}
	delete(want, "/etc/resolv.conf") // the file is empty without servers
	if d := cmp.Diff(want, mounts); d != "" {
		t.Error(d)
	}
	if b, err := os.ReadFile(filepath.Join(vol.Path, "seed")); err != nil || string(b) != "s" {
		t.Errorf("%q, %v", b, err)
	}
}

// BenchmarkCreateStart measures the engine's own part of a container's start.
func BenchmarkCreateStart(b *testing.B) {
	n := enginetest.New(b)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCRI, "pod")
	client := n.As(core.OwnerCRI)
	b.ReportAllocs()
	for b.Loop() {
		c, err := client.CreateContainer(b.Context(), core.ContainerConfig{Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep")})
		if err != nil {
			b.Fatal(err)
		}
		if err := client.StartContainer(b.Context(), c.ID); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := client.RemoveContainer(b.Context(), c.ID, engine.RemoveOptions{Force: true}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// TestANamespaceOfItsOwn: a container's own namespaces are not its sandbox's.
func TestANamespaceOfItsOwn(t *testing.T) {
	n := enginetest.New(t)
	client := n.As(core.OwnerCRI)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	shared := core.Namespace{Mode: core.Shared}
	sb, err := client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod", Hostname: "h", Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared, PID: shared}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := core.ContainerConfig{Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep")}
	cfg.Own = []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace}
	c, err := client.CreateContainer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	spec := n.Runtime.Spec(c.ID)
	for _, ns := range spec.Linux.Namespaces {
		if ns.Path != "" {
			t.Errorf("the %s namespace is %s", ns.Type, ns.Path)
		}
	}
	if len(spec.Linux.Namespaces) != 6 || spec.Hostname != "h" || slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" && m.Type == "bind" }) {
		t.Errorf("hostname %q, %+v, %+v", spec.Hostname, spec.Linux.Namespaces, spec.Mounts)
	}
	for name, bad := range map[string]core.ContainerConfig{
		"a user namespace":  {Own: []specs.LinuxNamespaceType{specs.UserNamespace}},
		"a mount namespace": {Own: []specs.LinuxNamespaceType{specs.MountNamespace}},
		"one named twice":   {Own: []specs.LinuxNamespaceType{specs.PIDNamespace, specs.PIDNamespace}},
		"one joined too":    {Own: []specs.LinuxNamespaceType{specs.PIDNamespace}, Join: []core.Join{{Namespace: specs.PIDNamespace, Container: c.ID}}},
	} {
		with := cfg
		with.Own, with.Join = bad.Own, bad.Join
		if _, err := client.CreateContainer(t.Context(), with); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
