package network

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel's table is shared by the whole machine, so a test must not fill it.
func TestAFullNeighbourTableIsNoReasonToRefuseASandbox(t *testing.T) {
	for _, err := range []error{nil, unix.ENOBUFS, fmt.Errorf("netlink: %w", unix.ENOBUFS)} {
		if got := hint(err); got != nil {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := hint(unix.ENODEV); !errors.Is(got, unix.ENODEV) {
		t.Errorf("%v became %v", unix.ENODEV, got)
	}
}
