package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/nlwrap"
	"github.com/longshore/longshore/internal/weaken"
)

// CloseMetadata makes a sandbox's namespace refuse packets to the metadata addresses, unless its configuration opens them. The rules
// of an egress list do it for a sandbox with one. Programs with CAP_NET_ADMIN can remove the routes, and those with CAP_NET_RAW
// can send packets that pass none.
func CloseMetadata(sb nlwrap.Handle, cfg core.NetworkConfig) error {
	if cfg.Metadata || len(cfg.Egress) > 0 || weaken.Off(weaken.MetadataRoutes) {
		return nil
	}
	for _, r := range metadataRoutes() {
		// IPv6 may be missing or off.
		if err := sb.RouteReplace(r); err != nil && (r.Dst.IP.To4() != nil || !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES)) {
			return fmt.Errorf("close the metadata address %s: %w", r.Dst.IP, err)
		}
	}
	return nil
}

// CloseMetadataIn is CloseMetadata for the namespace at path.
func CloseMetadataIn(path string, cfg core.NetworkConfig) error {
	if cfg.Metadata || len(cfg.Egress) > 0 {
		return nil
	}
	h, f, err := Inside(path)
	if err != nil {
		return err
	}
	defer func() { h.Close(); _ = f.Close() }()
	return CloseMetadata(h, cfg)
}

// OpenMetadataIn reverts CloseMetadata in the namespace at path.
func OpenMetadataIn(path string) error {
	h, f, err := Inside(path)
	if err != nil {
		return err
	}
	defer func() { h.Close(); _ = f.Close() }()
	for _, r := range metadataRoutes() {
		if err := h.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) && r.Dst.IP.To4() != nil {
			return fmt.Errorf("open the metadata address %s: %w", r.Dst.IP, err)
		}
	}
	return nil
}

func metadataRoutes() (list []*netlink.Route) {
	for _, a := range egress.LinkMetadata() {
		list = append(list, &netlink.Route{Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Type: unix.RTN_UNREACHABLE})
	}
	return list
}
