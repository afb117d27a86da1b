package nlwrap_test

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/nlwrap"
	"github.com/longshore/longshore/internal/roottest"
)

func TestTheMonitorReportsChanges(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m, err := nlwrap.OpenMonitor()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "monitored"}}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}
		many := func() error { // more than its buffer holds
			for range 200 {
				if err := netlink.LinkSetMTU(bridge, 1400); err != nil {
					return err
				}
				if err := netlink.LinkSetMTU(bridge, 1500); err != nil {
					return err
				}
			}
			return nil
		}
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"a link is made", func() error { return netlink.LinkAdd(bridge) }},
			{"a link is set up", func() error { return netlink.LinkSetUp(bridge) }},
			{"an address is added", func() error { return netlink.AddrAdd(bridge, address) }},
			{"many changes", many},
			{"an address is deleted", func() error { return netlink.AddrDel(bridge, address) }},
			{"a link is deleted", func() error { return netlink.LinkDel(bridge) }},
		} {
			m.Changed() // earlier changes, such as addresses that the kernel adds later
			must(step.do())
			if !m.Changed() {
				t.Errorf("%s: no change", step.name)
			}
		}
		if m.Changed() {
			t.Error("a change when nothing has changed")
		}
	})
}

// TestTheMonitorIgnoresTheStateOfPorts lets a port of a bridge change as the bridge changes it by itself. A port that
// leaves its bridge is the control.
func TestTheMonitorIgnoresTheStateOfPorts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "monitored"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			t.Fatal(err)
		}
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port", MasterIndex: bridge.Index}, PeerName: "peer"}
		if err := netlink.LinkAdd(port); err != nil {
			t.Fatal(err)
		}
		m, err := nlwrap.OpenMonitor()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		m.Changed()
		if err := netlink.LinkSetHairpin(port, true); err != nil {
			t.Fatal(err)
		}
		if m.Changed() {
			t.Error("the state of a port counts as a change")
		}
		if err := netlink.LinkSetNoMaster(port); err != nil {
			t.Fatal(err)
		}
		if !m.Changed() {
			t.Error("a port that leaves its bridge is no change")
		}
	})
}
