package bridge

import (
	"errors"
	"io/fs"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/settings"
	"github.com/longshore/longshore/internal/nlwrap"
)

// When a link comes up it asks the whole bridge, in IPv6, whether anybody has the link-local
// address it is about to take, reports its multicast groups twice, and looks for routers. Each of
// these packets goes to all ports: beside 500 sandboxes that is most of the cost of a new one. So
// an end of a pair gets an IPv6 address only where it is needed.

// noAddr6 makes the kernel take no link-local address by itself
// (IN6_ADDR_GEN_MODE_NONE of linux/if_link.h).
const noAddr6 = 1

// port makes the host's end a port of the bridge without IPv6 traffic of its own. The port also
// sends packets back where they came from: with br_netfilter a sandbox reaches its own host port
// that way. It must be called before the link has a carrier.
func (p vethPair) port(h kernel.Socket) error {
	err := p.changePort(h, true)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return p.changePort(h, false) // the host has no IPv6, or has disabled it on this link
	}
	return err
}

func (p vethPair) changePort(h kernel.Socket, quiet bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.name)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	data.AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	if p.isolated {
		data.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, nl.Uint8Attr(1))
	}
	req.AddData(info)
	if quiet {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(noAddr6))
		req.AddData(spec)
	}
	req.Sockets = h.Raw
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// silence keeps a sandbox's link, which is still down, from generating an IPv6 address.
func silence(sb nlwrap.Handle, link netlink.Link) error {
	err := sb.LinkSetIP6AddrGenMode(link, noAddr6)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	return err
}

// deaf keeps a sandbox's link, which is still down, from taking a neighbour for a router because
// that says so: each may, to all on the bridge. The calling thread is in the sandbox's namespace.
func deaf(link string) error {
	_, err := settings.Set("net/ipv6/conf/"+link+"/accept_ra", "0")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has no IPv6
	}
	return err
}
