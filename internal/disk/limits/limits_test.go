package limits_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/disk/limits"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestMeasure: a container with more bytes than its limit is killed.
func TestMeasure(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Start()
	image := n.AddImage("app", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCLI, "pod")
	c, err := n.As(core.OwnerCLI).CreateContainer(t.Context(), core.ContainerConfig{
		Key: "app", Sandbox: sb.ID, Root: core.Root{Image: image.ID}, Spec: enginetest.Args("sleep"), Labels: map[string]string{core.DiskLabel: "1m"},
	})
	if err == nil {
		err = n.As(core.OwnerCLI).StartContainer(t.Context(), c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.Disk != 1<<20 {
		t.Errorf("the label gives a limit of %d", c.Config.Disk)
	}
	n.Running(sb, "free", image, "sleep")
	r := limits.Runner{All: n.Engine.All(), Log: slog.New(slog.DiscardHandler)}
	running := func(key core.Key) (bool, *core.Autopsy) {
		t.Helper()
		if err := r.Measure(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.Settle()
		all, err := n.As(core.OwnerCLI).Containers(t.Context(), core.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Key == key {
				return c.State == core.ContainerRunning, c.Main.Autopsy
			}
		}
		return false, nil
	}
	if ok, _ := running("app"); !ok {
		t.Fatal("it was killed below its limit")
	}
	n.Images.Root = core.RootStats{Bytes: core.Known(1<<20 + 1), At: time.Now()}
	ok, autopsy := running("app")
	if ok || autopsy == nil || autopsy.StopRequest == nil || !strings.HasPrefix(autopsy.StopRequest.Call, limits.Call) {
		t.Errorf("above its limit: running %v, %+v", ok, autopsy)
	}
	// A program with more files than can be measured could evade its limit.
	c, err = n.As(core.OwnerCLI).CreateContainer(t.Context(), core.ContainerConfig{
		Key: "many", Sandbox: sb.ID, Root: core.Root{Image: image.ID}, Spec: enginetest.Args("sleep"), Disk: 1 << 30,
	})
	if err == nil {
		err = n.As(core.OwnerCLI).StartContainer(t.Context(), c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := running("many"); !ok {
		t.Fatal("it was killed below its limit")
	}
	n.Images.Root.Bytes = core.Value{}
	if ok, _ := running("many"); ok {
		t.Error("a container that cannot be measured runs on")
	}
	if ok, _ := running("free"); !ok {
		t.Error("a container without a limit was killed")
	}
}
