package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestARenewedContainerHasTheNewResolvConf, whether its sandbox was stopped meanwhile, as by stop and
// start, or not, as by restart.
func TestARenewedContainerHasTheNewResolvConf(t *testing.T) {
	for _, stopped := range []bool{true, false} {
		servers := "nameserver 10.0.0.1\n"
		n := enginetest.Fakes(t)
		n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
		n.Options.Files = func(context.Context, core.Sandbox) (engine.Files, error) {
			return engine.Files{ResolvConf: []byte(servers)}, nil
		}
		n.Start()
		img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
		sb, client := n.Pod(core.OwnerCRI, "pod"), n.As(core.OwnerCRI)
		c, err := client.CreateContainer(t.Context(), core.ContainerConfig{Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep")})
		if err != nil {
			t.Fatal(err)
		}
		files := []string{filepath.Join(sb.Dir, "resolv.conf"), filepath.Join(c.Bundle, "rootfs", "etc", "resolv.conf")}
		has := func(when string) {
			t.Helper()
			for _, file := range files {
				if b, err := os.ReadFile(file); err != nil || string(b) != servers {
					t.Errorf("%s, sandbox stopped %v: %s has %q, %v, want %q", when, stopped, file, b, err, servers)
				}
			}
		}
		has("created")
		if err := client.StartContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if err := client.StopContainer(t.Context(), c.ID, engine.StopOptions{}); err != nil {
			t.Fatal(err)
		}
		if stopped {
			if err := client.StopSandbox(t.Context(), sb.ID, engine.StopOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		servers = "nameserver 10.0.0.2\nsearch example.org\n"
		if err := client.RenewContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		has("renewed")
	}
}

// TestPoliciesAreAskedAboutARenewedProcess renews a container that a policy refuses, because the node
// has lost its AppArmor profile, for example. The container stays ended, and can be renewed later.
func TestPoliciesAreAskedAboutARenewedProcess(t *testing.T) {
	n, last := enginetest.Fakes(t), &enginetest.Policy{}
	n.Options.Policies = append(n.Options.Policies, last)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	pod, client := n.Pod(core.OwnerCRI, "pod"), n.As(core.OwnerCRI)
	c := n.Running(pod, "c", img, "sleep")
	if err := client.StopContainer(t.Context(), c.ID, engine.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("no such profile")
	last.Does(enginetest.Hooks{Asked: func(_ context.Context, question string) error {
		if question == "adjust process c" {
			return refusal
		}
		return nil
	}})
	if err := client.RenewContainer(t.Context(), c.ID); !errors.Is(err, refusal) {
		t.Fatalf("renewed against a policy: %v", err)
	}
	if now, err := client.Container(t.Context(), c.ID); err != nil || now.State != core.ContainerExited {
		t.Errorf("after the refusal it is %s, %v", now.State, err)
	}
	last.Does(enginetest.Hooks{Process: func(_ *core.Container, proc *specs.Process) { proc.Env = append(proc.Env, "AGAIN=1") }})
	if err := client.RenewContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if env := n.Runtime.Spec(c.ID).Process.Env; !slices.Contains(env, "AGAIN=1") {
		t.Errorf("the runtime has env %q", env)
	}
}
