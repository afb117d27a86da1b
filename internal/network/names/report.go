package names

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
)

// reports reads the kernel's reports of a sandbox's connections and writes them to its journal, until the socket is closed.
func reports(socket *os.File, j *journal) {
	buf := make([]byte, 2*reportsSize)
	for {
		n, err := socket.Read(buf)
		if errors.Is(err, unix.ENOBUFS) { // reports were lost, and the counter of the rules has them
			continue
		}
		if err != nil {
			return
		}
		for _, r := range readReports(buf[:n]) {
			j.connection(r)
		}
	}
}

// Attributes of a report, of the kernel's linux/netfilter/nfnetlink_log.h.
const (
	ulogPacket = unix.NFNL_SUBSYS_ULOG << 8
	ulogData   = 9
	ulogPrefix = 10
	ulogUID    = 11
)

// readReports reads messages of nflog. The packets in them are a workload's.
func readReports(b []byte) (list []egress.Record) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return list
		}
		if binary.NativeEndian.Uint16(b[4:]) == ulogPacket && size >= unix.SizeofNlMsghdr+4 {
			if r, ok := readReport(b[unix.SizeofNlMsghdr+4 : size]); ok {
				list = append(list, r)
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return list
}

func readReport(b []byte) (r egress.Record, ok bool) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return r, false
		}
		value := b[unix.SizeofNlAttr:size]
		switch binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case ulogData:
			if r.Addr, r.Proto, r.Port, ok = readPacket(value); !ok {
				return r, false
			}
		case ulogPrefix:
			r.Kind = egress.RecordRefused
			if strings.TrimRight(string(value), "\x00") == egress.Opened {
				r.Kind = egress.RecordOpened
			}
		case ulogUID:
			if len(value) == 4 {
				uid := binary.BigEndian.Uint32(value)
				r.UID = &uid
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return r, ok && r.Kind != ""
}

// readPacket returns the destination of an IP packet.
func readPacket(p []byte) (to netip.Addr, proto string, port uint16, ok bool) {
	if len(p) < 20 {
		return to, "", 0, false
	}
	var kind byte
	var rest []byte
	switch p[0] >> 4 {
	case 4:
		head := int(p[0]&15) * 4
		if head < 20 || head > len(p) {
			return to, "", 0, false
		}
		to, kind, rest = netip.AddrFrom4([4]byte(p[16:20])), p[9], p[head:]
	case 6:
		if len(p) < 40 {
			return to, "", 0, false
		}
		to, kind, rest = netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	default:
		return to, "", 0, false
	}
	switch kind {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(rest) >= 4 {
			port = binary.BigEndian.Uint16(rest[2:])
		}
		proto = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[kind]
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		proto = "icmp"
	default:
		proto = "ip protocol " + string('0'+rune(kind/100)) + string('0'+rune(kind/10%10)) + string('0'+rune(kind%10))
	}
	return to, proto, port, true
}
