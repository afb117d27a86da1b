package kernel

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// ethtoolRequest is struct ifreq with a pointer in it.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// Settle makes the kernel handle what it knows of a link's carrier at once. It would do so a
// little later, from a queue; until then a bridge does not forward to a new port, so the first
// ARP request is lost and repeated only after a second. Reading the link's state through ethtool
// flushes the queue for the link, on every kernel.
func (h Socket) Settle(link string) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_GLINK}
	req := ethtoolRequest{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(h.control), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("read the state of link %s: %w", link, errno)
	}
	return nil
}
