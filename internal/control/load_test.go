package control_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// TestLoad: the share of the processors comes with the second round.
func TestLoad(t *testing.T) {
	r := newRig(t)
	stream, err := r.readNode.Load(t.Context(), &longshorev1.LoadRequest{Interval: durationpb.New(100 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if first.CpuPercent != nil || first.GetCpus() < 1 || first.GetMemoryTotalBytes() == 0 || first.GetMemoryBytes() > first.GetMemoryTotalBytes() {
		t.Errorf("first: %v", first)
	}
	for round := first; round.CpuPercent == nil; { // the clock of the kernel may not have moved
		if round, err = stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if p := round.GetCpuPercent(); p < 0 || p > float64(100*round.GetCpus()) {
			t.Errorf("%v %% of %d processors", p, round.GetCpus())
		}
	}
	short, err := r.node.Load(t.Context(), &longshorev1.LoadRequest{Interval: durationpb.New(time.Millisecond)})
	if err == nil {
		_, err = short.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a short interval: %v", err)
	}
}
