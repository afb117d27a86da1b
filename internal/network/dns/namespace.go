package dns

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/nlwrap"
)

// Addresses returns the addresses of the interfaces of a network namespace at which others reach it, in the
// kernel's order. It is for namespaces that somebody else has made and given addresses to.
func Addresses(path string) ([]netip.Addr, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("addresses of a network namespace: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("addresses of the network namespace %s: %w", path, err)
	}
	defer raw.Close()
	list, err := nlwrap.Handle{Handle: raw}.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of the network namespace %s: %w", path, err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.IsGlobalUnicast() {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs, nil
}
