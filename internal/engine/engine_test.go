package engine_test

import (
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

const patience = 10 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAPodFromStartToEnd(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\n"})
	sb := n.Pod(core.OwnerCRI, "pod")
	c := n.Running(sb, "c", img, "sleep")
	client := n.As(core.OwnerCRI)
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 3)
	a, err := client.Wait(t.Context(), core.Ref{Container: c.ID})
	if err != nil || a.Exit.Code != 3 || a.Verdict != "exited with code 3" {
		t.Fatalf("%+v, %v", a, err)
	}
	n.Running(sb, "d", img, "sleep")
	if err := client.StopSandbox(t.Context(), sb.ID, engine.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Clean()
	if left := n.Left(); len(left) > 0 {
		t.Fatalf("left: %v", left)
	}
}
