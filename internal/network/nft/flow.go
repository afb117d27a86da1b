package nft

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// flowTable is a netlink socket to the connections of a namespace that the kernel follows.
type flowTable map[int]*nl.SocketHandle

// flow is one of them, by its first packet and by the answer to that.
type flow struct{ asked, answered flowTuple }

// flowTuple is how one direction's packets are addressed.
type flowTuple struct {
	from, to netip.AddrPort
	proto    uint8
}

// remove removes the flows of a family that match. Of all others nothing is kept while they are
// listed: a program can have the kernel follow hundreds of thousands.
func (t flowTable) remove(family uint8, match func(flow) bool) error {
	var found [][]byte
	list := t.request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	err := list.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if len(msg) > nl.SizeofNfgenmsg && match(readFlow(msg[nl.SizeofNfgenmsg:])) {
			found = append(found, slices.Clone(msg[nl.SizeofNfgenmsg:]))
		}
		return true
	})
	errs := []error{err}
	for _, raw := range found {
		one := t.request(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		one.AddRawData(raw)
		if _, err := one.Execute(unix.NETLINK_NETFILTER, 0); !errors.Is(err, unix.ENOENT) { // it has ended by itself
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (t flowTable) request(family uint8, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	req.Sockets = t
	return req
}

// readFlow reads an entry as the kernel lists it.
func readFlow(b []byte) (f flow) {
	for kind, value := range attributes(b) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.asked = readTuple(value)
		case nl.CTA_TUPLE_REPLY:
			f.answered = readTuple(value)
		}
	}
	return f
}

func readTuple(b []byte) (t flowTuple) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for part, value := range attributes(b) {
		for kind, value := range attributes(value) {
			switch {
			case part == nl.CTA_TUPLE_IP && (kind == nl.CTA_IP_V4_SRC || kind == nl.CTA_IP_V6_SRC):
				from, _ = netip.AddrFromSlice(value)
			case part == nl.CTA_TUPLE_IP && (kind == nl.CTA_IP_V4_DST || kind == nl.CTA_IP_V6_DST):
				to, _ = netip.AddrFromSlice(value)
			case part == nl.CTA_TUPLE_PROTO && kind == nl.CTA_PROTO_NUM && len(value) == 1:
				t.proto = value[0]
			case part == nl.CTA_TUPLE_PROTO && kind == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
				fromPort = binary.BigEndian.Uint16(value)
			case part == nl.CTA_TUPLE_PROTO && kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
				toPort = binary.BigEndian.Uint16(value)
			}
		}
	}
	t.from, t.to = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return t
}

// attributes are those of a netlink message, by their kinds.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) || !yield(int(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK), b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}
