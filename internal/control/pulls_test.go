package control_test

import (
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestWatchPulls: another owner's pull appears with its layers when it begins, and is gone when it ends.
func TestWatchPulls(t *testing.T) {
	r := newRig(t)
	release, reported := make(chan struct{}), make(chan struct{})
	r.Images.OnPull = func(opts core.PullOptions) {
		opts.Progress(core.PullProgress{Blob: "sha256:aa", Status: "downloading", Done: 3, Total: 10})
		close(reported)
		<-release
	}
	stream, err := r.images.WatchPulls(t.Context(), &longshorev1.WatchPullsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || len(m.GetPulls()) != 0 {
		t.Fatalf("at first: %v, %v", m, err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.Engine.As(core.OwnerCRI).Images.Pull(t.Context(), "busybox", core.PullOptions{})
		done <- err
	}()
	<-reported
	for {
		m, err := stream.Recv()
		if err != nil || len(m.GetPulls()) != 1 {
			t.Fatalf("while it is pulled: %v, %v", m, err)
		}
		p := m.GetPulls()[0]
		if p.GetOwner() != "cri" || p.GetName() != "busybox" {
			t.Fatalf("the pull is %v", p)
		}
		if l := p.GetLayers(); len(l) == 1 && l[0].GetBlob() == "sha256:aa" && l[0].GetDone() == 3 && l[0].GetTotal() == 10 {
			break
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for m, err := stream.Recv(); len(m.GetPulls()) != 0; m, err = stream.Recv() {
		if err != nil {
			t.Fatal(err)
		}
	}
}
