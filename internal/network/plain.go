package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
)

// The attributes that make a bridge send forwarded packets through the IP rules.
const (
	brCallIPTables  = 36 // IFLA_BR_NF_CALL_IPTABLES
	brCallIP6Tables = 37 // IFLA_BR_NF_CALL_IP6TABLES
)

// bridgeFilter exists if the kernel can send a bridge's packets through the IP rules.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// setPlain excludes traffic within the configured ranges from masquerading. When a sandbox has
// asked another by an address that is translated on this host, the answer must then pass through
// the host's rules, although the bridge could pass it on by itself. b.mu is held.
func (b *bridge) setPlain(link netlink.Link) error {
	nets := b.plain()
	p := nft.Plain{Nets: nets}
	if len(nets) > 0 {
		var err error
		if p.Bridged, err = b.filterBridged(link.Attrs().Index); err != nil {
			return fmt.Errorf("send traffic of bridge %s through the rules: %w", b.cfg.Bridge, err)
		}
	}
	return b.table.SetPlain(p)
}

// filterBridged returns false when the kernel does not support it. Preconditions: mu is held.
func (b *bridge) filterBridged(index int) (bool, error) {
	if _, err := os.Stat(bridgeFilter); errors.Is(err, fs.ErrNotExist) {
		b.log.Warn("the kernel's br_netfilter is not loaded: sandboxes that ask each other by a translated address are masqueraded", "hint", "modprobe br_netfilter")
		return false, nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(brCallIPTables, nl.Uint8Attr(1))
	data.AddRtAttr(brCallIP6Tables, nl.Uint8Attr(1))
	req.AddData(info)
	req.Sockets = b.host.Raw
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return false, err
	}
	return true, nil
}

// Trouble returns why sandboxes of this node and of others cannot reach each other under their own
// addresses, or the published ports that are in use here, "" if all is well; hint is advice.
func (n *Network) Trouble() (trouble, hint string) {
	if trouble, hint := n.ingress.trouble(); trouble != "" {
		return trouble, hint
	}
	nets, err := n.cfg.PlainNets(n.leases.Ranges())
	if err != nil || len(nets) == 0 || n.mode != netconf.ModeBuiltin {
		return "", ""
	}
	if _, err := os.Stat(bridgeFilter); err != nil {
		return "br_netfilter is not loaded: pods of this node that ask each other by a Service see the node's address", "modprobe br_netfilter, and a file in /etc/modules-load.d"
	}
	routes, err := kernel.Routes(n.cfg.Bridge)
	if err != nil {
		return err.Error(), ""
	}
	own := n.leases.Ranges()
	for _, p := range nets {
		if !p.Addr().Is4() || slices.ContainsFunc(own, func(r ipam.Range) bool { return r.Prefix.Overlaps(p) && r.Prefix.Bits() <= p.Bits() }) {
			continue // the whole range is on this node
		}
		if !slices.ContainsFunc(routes, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) }) {
			return "no route to other nodes' pods in " + p.String() + ": they are sent where everything else is", "add a route to each node's range, or let the cloud or a routing daemon do it"
		}
	}
	return "", ""
}
