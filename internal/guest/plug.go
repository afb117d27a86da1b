package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// PlugTime is the default timeout for a device, and cpuTime the least timeout for a processor.
const (
	PlugTime = 3 * time.Second
	cpuTime  = 5 * time.Second
)

// plugCheck is the interval of checks of sysfs, because the kernel does not announce all changes.
const plugCheck = 250 * time.Millisecond

// await waits for something that the host plugs in: it calls there now and at each announcement of
// the kernel. The error after the timeout is NotFound. The host requests a device before the
// guest's kernel has seen it.
func await(ctx context.Context, what string, wait time.Duration, there func() bool) error {
	// An announced device is in sysfs already, so nothing is lost between the first check and the
	// first announcement.
	announced, stop := listenToKernel()
	defer stop()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(plugCheck)
	defer tick.Stop()
	for {
		if there() {
			return nil
		}
		select {
		case <-announced:
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("%s was plugged in within %s: %w", what, wait, errdefs.ErrNotFound)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listenToKernel returns a channel that has a value after the kernel has announced that a
// device came, went or changed. Which one is not read: sysfs says it better. Without such
// announcements the channel is silent.
func listenToKernel() (announced <-chan struct{}, stop func()) {
	const kernelGroup = 1
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, func() {}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(fd)
		return nil, func() {}
	}
	socket := os.NewFile(uintptr(fd), "announcements") // Go's poller waits for it, since it does not block
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		var b [64]byte // the kernel drops the rest of a message
		for {
			// A message that did not fit into the socket's buffer was an announcement, too.
			if _, err := socket.Read(b[:]); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, func() {
		_ = socket.Close() // which ends the read
		<-ended
	}
}
