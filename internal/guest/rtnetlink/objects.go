package rtnetlink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Link is a network link.
type Link struct {
	Index int
	Name  string
	MAC   []byte
	MTU   int
	Flags uint32 // IFF_
	Stats *Stats // nil where the kernel has none
}

// Stats counts the traffic of a link.
type Stats struct {
	RxPackets, TxPackets, RxBytes, TxBytes, RxErrors, TxErrors, RxDropped, TxDropped uint64
}

// Links lists the links.
func (c *Conn) Links() ([]Link, error) {
	return list(c, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), decodeLink)
}

func decodeLink(b []byte) (Link, bool, error) {
	order := binary.NativeEndian
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, false, errShort
	}
	l := Link{Index: int(int32(order.Uint32(b[4:]))), Flags: order.Uint32(b[8:])}
	err := attributes(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch {
		case kind == unix.IFLA_IFNAME:
			l.Name = string(bytes.TrimRight(v, "\x00"))
		case kind == unix.IFLA_ADDRESS:
			l.MAC = bytes.Clone(v)
		case kind == unix.IFLA_MTU && len(v) >= 4:
			l.MTU = int(order.Uint32(v))
		case kind == unix.IFLA_STATS64 && len(v) >= 64:
			s := &Stats{}
			for i, n := range []*uint64{&s.RxPackets, &s.TxPackets, &s.RxBytes, &s.TxBytes, &s.RxErrors, &s.TxErrors, &s.RxDropped, &s.TxDropped} {
				*n = order.Uint64(v[8*i:])
			}
			l.Stats = s
		}
	})
	return l, true, err
}

// SetFlags sets those flags of a link that are in mask.
func (c *Conn) SetFlags(index int, flags, mask uint32) error {
	return c.change(unix.RTM_SETLINK, 0, ifInfo(index, flags, mask))
}

// SetName gives a link a name.
func (c *Conn) SetName(index int, name string) error {
	return c.change(unix.RTM_SETLINK, 0, appendAttribute(ifInfo(index, 0, 0), unix.IFLA_IFNAME, append([]byte(name), 0)))
}

// SetMAC gives a link an address of its own.
func (c *Conn) SetMAC(index int, mac []byte) error {
	return c.change(unix.RTM_SETLINK, 0, appendAttribute(ifInfo(index, 0, 0), unix.IFLA_ADDRESS, mac))
}

// SetMTU sets the size of a link's largest packet.
func (c *Conn) SetMTU(index, mtu int) error {
	return c.change(unix.RTM_SETLINK, 0, appendAttribute(ifInfo(index, 0, 0), unix.IFLA_MTU, number(uint32(mtu))))
}

func ifInfo(index int, flags, mask uint32) []byte {
	order := binary.NativeEndian
	b := order.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, uint32(index))
	return order.AppendUint32(order.AppendUint32(b, flags), mask)
}

// Address is an address of a link.
type Address struct {
	Link   int
	Prefix netip.Prefix // the whole address, with the length of its prefix
}

// Addresses lists the addresses of all links, IPv4's first.
func (c *Conn) Addresses() ([]Address, error) {
	return list(c, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), decodeAddress)
}

func decodeAddress(b []byte) (Address, bool, error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Address{}, false, errShort
	}
	var address, local netip.Addr // with a peer, address is the peer's
	err := attributes(b[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		}
	})
	if !local.IsValid() {
		local = address
	}
	return Address{Link: int(int32(binary.NativeEndian.Uint32(b[4:]))), Prefix: netip.PrefixFrom(local, int(b[1]))}, local.IsValid(), err
}

// ReplaceAddress gives a link an address, unless it has it.
func (c *Conn) ReplaceAddress(a Address) error {
	at, bits := a.Prefix.Addr(), a.Prefix.Bits()
	b := binary.NativeEndian.AppendUint32([]byte{family(at), byte(bits), 0, unix.RT_SCOPE_UNIVERSE}, uint32(a.Link))
	b = appendAttribute(b, unix.IFA_LOCAL, at.AsSlice())
	b = appendAttribute(b, unix.IFA_ADDRESS, at.AsSlice())
	if at.Is4() && bits < 31 {
		all := at.As4()
		binary.BigEndian.PutUint32(all[:], binary.BigEndian.Uint32(all[:])|(1<<(32-bits)-1))
		b = appendAttribute(b, unix.IFA_BROADCAST, all[:])
	}
	return c.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Route is a route of the main table.
type Route struct {
	IPv6            bool
	To              netip.Prefix // of length 0: everywhere
	Gateway, Source netip.Addr   // the zero Addr: none
	Link            int
	Scope           uint8
	Flags           uint32
	MTU             int // 0: the link's
}

// Routes lists the routes of the main table of IPv4 or IPv6, but those that the kernel has made of others.
func (c *Conn) Routes(ipv6 bool) ([]Route, error) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = routeFamily(ipv6)
	return list(c, unix.RTM_GETROUTE, b, func(b []byte) (Route, bool, error) {
		r, ok, err := decodeRoute(b)
		return r, ok && r.IPv6 == ipv6, err
	})
}

func routeFamily(ipv6 bool) byte {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func decodeRoute(b []byte) (Route, bool, error) {
	order := binary.NativeEndian
	if len(b) < unix.SizeofRtMsg {
		return Route{}, false, errShort
	}
	table, to := uint32(b[4]), netip.IPv4Unspecified()
	r := Route{IPv6: b[0] == unix.AF_INET6, Scope: b[6], Flags: order.Uint32(b[8:])}
	if r.IPv6 {
		to = netip.IPv6Unspecified()
	}
	var inner error
	err := attributes(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch {
		case kind == unix.RTA_DST:
			to, _ = netip.AddrFromSlice(v)
		case kind == unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(v)
		case kind == unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(v)
		case kind == unix.RTA_OIF && len(v) >= 4:
			r.Link = int(int32(order.Uint32(v)))
		case kind == unix.RTA_TABLE && len(v) >= 4:
			table = order.Uint32(v)
		case kind == unix.RTA_METRICS:
			inner = attributes(v, func(kind uint16, v []byte) {
				if kind == unix.RTAX_MTU && len(v) >= 4 {
					r.MTU = int(order.Uint32(v))
				}
			})
		}
	})
	if err == nil {
		err = inner
	}
	r.To = netip.PrefixFrom(to, int(b[1]))
	return r, table == unix.RT_TABLE_MAIN && r.Flags&unix.RTM_F_CLONED == 0, err
}

// ReplaceRoute adds a route to the main table, in place of one to the same destination.
func (c *Conn) ReplaceRoute(r Route) error {
	b, err := encodeRoute(r)
	if err != nil {
		return err
	}
	return c.change(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}

func encodeRoute(r Route) ([]byte, error) {
	bits := max(r.To.Bits(), 0)
	b := []byte{routeFamily(r.IPv6), byte(bits), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, r.Scope, unix.RTN_UNICAST}
	b = binary.NativeEndian.AppendUint32(b, r.Flags)
	add := func(kind uint16, a netip.Addr) error {
		if a.Is4() == r.IPv6 {
			return fmt.Errorf("%s is an address of the other IP version: %w", a, unix.EAFNOSUPPORT)
		}
		b = appendAttribute(b, kind, a.AsSlice())
		return nil
	}
	if bits > 0 {
		if err := add(unix.RTA_DST, r.To.Addr()); err != nil {
			return nil, err
		}
	}
	if r.Gateway.IsValid() {
		if err := add(unix.RTA_GATEWAY, r.Gateway); err != nil {
			return nil, err
		}
	}
	if r.Source.IsValid() {
		if err := add(unix.RTA_PREFSRC, r.Source); err != nil {
			return nil, err
		}
	}
	b = appendAttribute(b, unix.RTA_OIF, number(uint32(r.Link)))
	if r.MTU > 0 {
		b = appendAttribute(b, unix.RTA_METRICS, appendAttribute(nil, unix.RTAX_MTU, number(uint32(r.MTU))))
	}
	return b, nil
}

// Neighbor is an address that is reached by a link without asking for it.
type Neighbor struct {
	Address netip.Addr
	MAC     []byte // nil for none
	Link    int
	State   uint16 // NUD_
	Flags   uint8  // NTF_
}

// ReplaceNeighbor adds a neighbour, in place of one with the same address.
func (c *Conn) ReplaceNeighbor(n Neighbor) error {
	order := binary.NativeEndian
	b := order.AppendUint32([]byte{family(n.Address), 0, 0, 0}, uint32(n.Link))
	b = append(order.AppendUint16(b, n.State), n.Flags, 0)
	b = appendAttribute(b, unix.NDA_DST, n.Address.AsSlice())
	if n.MAC != nil {
		b = appendAttribute(b, unix.NDA_LLADDR, n.MAC)
	}
	return c.change(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}
