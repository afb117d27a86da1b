package kernel

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel's table is shared by the whole machine, so a test must not fill it.
func TestAFullNeighbourTableIsNoReasonToRefuseASandbox(t *testing.T) {
	for _, err := range []error{nil, unix.ENOBUFS, fmt.Errorf("netlink: %w", unix.ENOBUFS)} {
		if got := Hint(err); got != nil {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := Hint(unix.ENODEV); !errors.Is(got, unix.ENODEV) {
		t.Errorf("%v became %v", unix.ENODEV, got)
	}
}

func TestBurst(t *testing.T) {
	for rate, want := range map[uint64]uint64{1: MinBurst, 1_000_000_000: 100_000_000, 1 << 40: MaxBurst} {
		if got := Burst(rate); got != want {
			t.Errorf("burst of %d is %d, want %d", rate, got, want)
		}
	}
}
