package wasm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestAnArrivalWithoutDescriptorsIsNoEnd: the program gets the error, and the next connection
// arrives.
func TestAnArrivalWithoutDescriptorsIsNoEnd(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	for range 2 {
		if err := unix.Sendmsg(ends[1], []byte("{}"), unix.UnixRights(ends[1]), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	restore := roottest.LimitFiles(t, 0, 3)
	_, err = arrival(ends[0])
	restore()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v", err)
	}
	fd, err := arrival(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
}
