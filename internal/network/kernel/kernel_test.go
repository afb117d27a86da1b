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
