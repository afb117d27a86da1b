package network_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// advert is a router advertisement in a frame to all: its sender is a default route, and everybody is to take an
// address of a range.
func advert() []byte {
	mac := []byte{0x02, 0, 0, 0, 0, 0x66}
	from, to := netip.MustParseAddr("fe80::66"), netip.MustParseAddr("ff02::1")
	msg := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	msg = append(append(msg, 1, 1), mac...)                                           // where it is
	msg = append(msg, 3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x38, 0x40, 0, 0, 0, 0) // a range to take one from
	msg = append(msg, netip.MustParseAddr("fd66::").AsSlice()...)
	sum := uint32(len(msg)) + unix.IPPROTO_ICMPV6
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), msg} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(msg[2:], ^uint16(sum))
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(msg)), unix.IPPROTO_ICMPV6, 255)
	return append(append(append(frame, from.AsSlice()...), to.AsSlice()...), msg...)
}

// advertise has a sandbox send advertisements by its interface.
func advertise(t *testing.T, ns *networktest.Namespace, link string) {
	t.Helper()
	ns.Do(t, func() error {
		out, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(s) }()
		return unix.Sendto(s, advert(), 0, &unix.SockaddrLinklayer{Ifindex: out.Index})
	})
}

// hearer is an interface that hears advertisements; in begins commands in its namespace.
type hearer struct{ in, link string }

// heard is how many it has heard.
func (h hearer) heard(t *testing.T) (n int) {
	t.Helper()
	for line := range strings.Lines(networktest.Run(t, h.in+"cat /proc/net/dev_snmp6/"+h.link)) {
		_, _ = fmt.Sscanf(line, "Icmp6InType134 %d", &n)
	}
	return n
}

// taken returns the routes and addresses from them.
func (h hearer) taken(t *testing.T) string {
	t.Helper()
	return networktest.Run(t, h.in+"ip -6 route show proto ra") + networktest.Run(t, h.in+"ip -6 -o address show to fd66::/64")
}

// deaf checks that none of the interfaces heeds a sandbox's advertisements, and that each would if
// it were not kept from it.
func deaf(t *testing.T, from *networktest.Namespace, link string, all ...hearer) {
	t.Helper()
	for _, h := range all { // where the host's default is off, nobody would hear anything
		networktest.Run(t, h.in+"sysctl -q -w net.ipv6.conf."+h.link+".disable_ipv6=0")
	}
	roottest.Eventually(t, "all hear advertisements", func() bool {
		advertise(t, from, link) // a new interface sends nothing yet
		// When the third has come, the first has had its effect.
		return !slices.ContainsFunc(all, func(h hearer) bool { return h.heard(t) < 3 })
	})
	for _, h := range all {
		if got := h.taken(t); got != "" {
			t.Errorf("%+v has taken on %s", h, got)
		}
		networktest.Run(t, h.in+"sysctl -q -w net.ipv6.conf."+h.link+".accept_ra=2 net.ipv6.conf."+h.link+".autoconf=1")
	}
	roottest.Eventually(t, "all heed advertisements when they are told to", func() bool {
		advertise(t, from, link)
		return !slices.ContainsFunc(all, func(h hearer) bool {
			got := h.taken(t)
			return !strings.Contains(got, "default") || !strings.Contains(got, "fd66::")
		})
	})
}

// TestNobodyHeedsWhatASandboxAdvertises: a sandbox that says that it is an IPv6 router becomes none for the
// others on its bridge, nor for the machine, whether the bridge has IPv6 or not.
func TestNobodyHeedsWhatASandboxAdvertises(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, ipv6 := range []bool{false, true} {
			t.Run(fmt.Sprint("IPv6 ", ipv6), func(t *testing.T) {
				r := newRig(t, func(c *netconf.Config) { c.IPv6 = ipv6 })
				bad, good := r.setup(1), r.setup(2)
				deaf(t, bad.ns, "eth0", hearer{"nsenter --net=" + good.ns.Path + " ", "eth0"}, hearer{"", "longshore0"})
				r.down(bad)
				r.down(good)
				if err := r.net.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		t.Run("an overlay", func(t *testing.T) {
			r := newRig(t, nil)
			six := anOverlay(2)
			six.Subnets[0].Range, six.Subnets[0].Gateway = netip.MustParsePrefix("fd99::/64"), netip.MustParseAddr("fd99::1")
			r.open(six)
			var boxes []box
			for n := range 2 {
				a := on(2, 7)
				a.Addrs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("fd99::%d/64", 7+n))}
				boxes = append(boxes, r.task(1+n, a))
			}
			deaf(t, boxes[0].ns, "eth0", hearer{"nsenter --net=" + boxes[1].ns.Path + " ", "eth0"})
			r.down(boxes[0])
			r.down(boxes[1])
		})
	})
}
