package vxlan

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
)

// Able says why this machine can have no network over several nodes, FailedPrecondition, by making
// a device in a namespace that ends with the call.
func Able() error {
	return kernel.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		err = h.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "able"}, VxlanId: 1, Port: DefaultPort})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
			return fmt.Errorf("this kernel has no vxlan, load its module (modprobe vxlan): %w: %w", err, errdefs.ErrFailedPrecondition)
		case err != nil:
			return fmt.Errorf("make vxlan device: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}); err != nil {
			return fmt.Errorf("make bridge: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
}
