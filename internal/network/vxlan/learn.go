package vxlan

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/weaken"
)

// The kernel finds interfaces by the entries alone. VXLAN devices and bridges learn nothing from packets.

// learns reports whether devices learn from packets: only in a weakened build.
func learns() bool { return weaken.Off(weaken.OverlaySenders) }

// unlearn switches learning off on a VXLAN device of an earlier version.
func unlearn(in space, link netlink.Link) error {
	err := kernel.Within(in.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(link.Attrs().Index)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("switch learning off on %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// onwardLocked returns the bridge's entry for a MAC on another node, which leads to the VXLAN device. Preconditions: mu
// is held.
func (n *Network) onwardLocked(hw hardware, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: n.links[hw.subnet].vxlan, Family: unix.AF_BRIDGE, HardwareAddr: mac, Flags: netlink.NTF_MASTER, State: netlink.NUD_NOARP}
}

// leadLocked adds the bridges' missing entries for MACs on other nodes, and removes entries that a VXLAN device of an
// earlier version has learned. Preconditions: mu is held.
func (n *Network) leadLocked(in space, have entries) error {
	var errs []error
	for i := range have.learned {
		errs = append(errs, ignoreMissing(in.NeighDel(&have.learned[i])))
	}
	for hw := range n.kernel.nodes {
		if have.onward[hw] || n.here(func(a Attachment) bool { return a.MAC == hw.mac }) {
			continue
		}
		mac, err := net.ParseMAC(hw.mac)
		if err == nil {
			err = in.NeighSet(n.onwardLocked(hw, mac))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lead to other nodes: %w", err)
	}
	return nil
}

// learning reports whether learning is on at a device where it must be off.
func learning(l netlink.Link) bool {
	v, is := l.(*netlink.Vxlan)
	return is && v.Learning && !learns()
}
