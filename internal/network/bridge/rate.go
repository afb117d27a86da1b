package bridge

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/nlwrap"
)

// queueTime is how long a packet may wait in the queue before it is dropped.
const queueTime = 0.025 // seconds

// limitRates shapes received traffic at the host's end of the link and sent traffic at the
// sandbox's end, because an end can shape only its outgoing packets. A sandbox that may configure
// its network can therefore remove the second limit.
func (p vethPair) limitRates(host, sb nlwrap.Handle, in netlink.Link, cfg core.NetworkConfig) error {
	if cfg.IngressRate > 0 {
		out, err := host.LinkByName(p.name)
		if err != nil {
			return fmt.Errorf("find %s: %w", p.name, err)
		}
		if err := host.QdiscAdd(bucket(out, cfg.IngressRate)); err != nil {
			return fmt.Errorf("limit received data to %d bit/s: %w", cfg.IngressRate, err)
		}
	}
	if cfg.EgressRate > 0 {
		if err := sb.QdiscAdd(bucket(in, cfg.EgressRate)); err != nil {
			return fmt.Errorf("limit sent data to %d bit/s: %w", cfg.EgressRate, err)
		}
	}
	return nil
}

// bucket is a token bucket of bits per second.
func bucket(link netlink.Link, bits uint64) *netlink.Tbf {
	rate := max(bits/8, 1)
	size := uint32(kernel.Burst(bits) / 8)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Limit:      uint32(min(float64(rate)*queueTime+float64(size), 1<<32-1)),
		Buffer:     netlink.Xmittime(rate, size),
	}
}
