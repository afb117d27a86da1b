package networktest

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// VXLAN returns the payload of a VXLAN packet: an Ethernet frame to a MAC with an IPv4 datagram.
func VXLAN(vni uint32, mac net.HardwareAddr, from, to netip.AddrPort, text string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, vni<<8)
	b = append(b, mac...)
	b = append(b, 0x02, 0x66, 0, 0, 0, 1)
	b = binary.BigEndian.AppendUint16(b, 0x0800)
	ip := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(28+len(text)))
	ip = append(ip, 0, 0, 0, 0, 64, 17, 0, 0)
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum&0xffff))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	return append(append(b, 0, 0), text...)
}
