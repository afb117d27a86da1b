package without_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/engine/without"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/network/networktest"
)

func TestImages(t *testing.T)  { imagetest.SuiteWithout(t, without.Images{}) }
func TestNetwork(t *testing.T) { networktest.ContractWithout(t, without.Network{}) }

// TestWhatIsMissingIsToldWithWhatToDo: everything that needs images, a network or volumes returns
// NotImplemented and names the remedy.
func TestWhatIsMissingIsToldWithWhatToDo(t *testing.T) {
	ctx, images, network, volumes := t.Context(), without.Images{}, without.Network{}, without.Volumes{}
	only := func(_ any, err error) error { return err }
	req := core.NetworkRequest{Sandbox: networktest.SandboxID(1), Namespace: "/run/netns/x"}
	for name, err := range map[string]error{
		"pull":     only(images.Pull(ctx, core.OwnerCLI, "busybox", core.PullOptions{})),
		"get":      only(images.Get(ctx, core.OwnerCLI, "busybox")),
		"tag":      images.Tag(ctx, core.OwnerCLI, "busybox", "box"),
		"remove":   images.Remove(ctx, core.OwnerCLI, "busybox"),
		"checkout": only(images.Checkout(ctx, core.CheckoutRequest{Container: "c", Image: "busybox"})),
		"import":   only(images.Import(ctx, core.OwnerCLI, &bytes.Buffer{}, core.ImportOptions{})),
		"export":   images.Export(ctx, core.OwnerCLI, []string{"busybox"}, &bytes.Buffer{}),
		"push":     images.Push(ctx, core.OwnerCLI, "busybox", core.PushOptions{}),
		"login":    images.Login(ctx, "docker.io", core.PushOptions{}),
		"setup":    only(network.Setup(ctx, req)),
		"check":    network.Check(ctx, req),
		"volume":   only(volumes.Create(ctx, core.OwnerCLI, core.VolumeConfig{Name: "data"})),
		"ranges":   network.SetRanges(ctx, []string{"10.0.0.0/8"}),
	} {
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), ": give the ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := volumes.List(ctx, core.OwnerCLI); err != nil || len(list) != 0 {
		t.Errorf("volumes: %v, %v", list, err)
	}
	for name, err := range map[string]error{
		"get":    only(volumes.Get(ctx, core.OwnerCLI, "data")),
		"remove": volumes.Remove(ctx, core.OwnerCLI, "data"),
		"filled": volumes.Filled(ctx, core.OwnerCLI, "data"),
		"source": only(volumes.Source(ctx, core.OwnerCLI, "data")),
	} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s of a volume: %v", name, err)
		}
	}
	if info, err := network.Info(ctx); err != nil || info.Ready || info.Reason == "" {
		t.Errorf("info: %+v, %v", info, err)
	}
}

// TestAnEngineRunsWithoutImagesAndNetwork: a container with a directory as its root runs in a
// sandbox on the host's network; requests that need more are refused and leave nothing.
func TestAnEngineRunsWithoutImagesAndNetwork(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Options.Images, n.Options.Network, n.Options.Volumes = without.Images{}, without.Network{}, without.Volumes{}
	n.Start()
	client := n.As(core.OwnerCLI)
	host, shared := core.Namespace{Mode: core.Host}, core.Namespace{Mode: core.Shared}
	sb, err := client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "guest", Namespaces: core.Namespaces{Net: host, IPC: shared, UTS: shared}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "c", Sandbox: sb.ID, Root: core.Root{Dir: t.TempDir()}, Spec: enginetest.Args("sleep"),
	})
	if err == nil {
		err = client.StartContainer(t.Context(), c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := n.Left()
	_, err = client.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "i", Sandbox: sb.ID, Root: core.Root{Image: "sha256:" + digest.Digest(strings.Repeat("a", 64))}, Spec: enginetest.Args("sleep"),
	})
	_, serr := client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "own", Namespaces: core.Namespaces{Net: shared}})
	if !errdefs.IsNotImplemented(err) || !errdefs.IsNotImplemented(serr) {
		t.Errorf("by an image: %v; with a network: %v", err, serr)
	}
	if left := n.Left(); !slices.Equal(left, before) {
		t.Errorf("left: %v, before %v", left, before)
	}
	if bad, err := n.Engine.Check(t.Context()); err != nil || len(bad) != 0 {
		t.Errorf("check: %v, %v", bad, err)
	}
	if err := client.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	n.Clean()
}
