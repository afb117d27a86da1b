package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/nft"
)

// The attributes that make a bridge send forwarded packets through the IP rules.
const (
	brCallIPTables  = 36 // IFLA_BR_NF_CALL_IPTABLES
	brCallIP6Tables = 37 // IFLA_BR_NF_CALL_IP6TABLES
)

// FilterFile exists if the kernel can send a bridge's packets through the IP rules.
const FilterFile = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// setPlain excludes traffic within the configured ranges from masquerading. When a sandbox has
// asked another by an address that is translated on this host, the answer must then pass through
// the host's rules, although the bridge could pass it on by itself. b.mu is held.
func (b *Bridge) setPlain(link netlink.Link) error {
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
func (b *Bridge) filterBridged(index int) (bool, error) {
	if _, err := os.Stat(FilterFile); errors.Is(err, fs.ErrNotExist) {
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
