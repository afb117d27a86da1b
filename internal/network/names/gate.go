package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
)

var (
	errNoGate   = errors.New("the agent has not sent the sandbox's rules yet")
	errManyOpen = errors.New("too many addresses are open")
)

// gate opens addresses in the rules of a network namespace, by a netlink socket that the agent has opened there. The kernel asks
// for CAP_NET_ADMIN of the sender, too.
type gate struct {
	mu     sync.Mutex // guards seq; one transaction at a time
	socket *os.File
	seq    uint32
}

// gateTime bounds the wait for the kernel's answer.
var gateTime = unix.Timeval{Sec: 2}

// Of the kernel's linux/netfilter/nf_tables.h and nfnetlink.h.
const (
	nftMsgNewSetElem = 12
	nftMsgDelSetElem = 14
	attrListTable    = 1
	attrListSet      = 2
	attrListElements = 3
	attrListElem     = 1
	attrElemKey      = 1
	attrElemTimeout  = 4
	attrDataValue    = 1
	maxOpenings      = 256 // of one transaction
)

// open implements opener.
func (g *gate) open(list []opening) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(list) > 0 {
		n := min(len(list), maxOpenings)
		if err := g.commitLocked(list[:n]); err != nil {
			return fmt.Errorf("open addresses: %w", err)
		}
		list = list[n:]
	}
	return nil
}

// commitLocked sends one transaction. Preconditions: mu is held.
func (g *gate) commitLocked(list []opening) error {
	raw, err := g.socket.SyscallConn()
	if err != nil {
		return err
	}
	batch := g.messageLocked(nil, unix.NFNL_MSG_BATCH_BEGIN, 0, binary.BigEndian.AppendUint16([]byte{0, 0}, unix.NFNL_SUBSYS_NFTABLES))
	element := func(kind uint16, o opening, timeout bool) {
		flags := uint16(unix.NLM_F_ACK)
		if kind == nftMsgNewSetElem {
			flags |= unix.NLM_F_CREATE
		}
		batch = g.messageLocked(batch, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, o.encode(timeout))
	}
	acks := 0
	for _, o := range list {
		if element(nftMsgNewSetElem, o, true); o.again {
			// Kernels before 6.12 leave the timeout of an element that they have. It may also have ended: the first message
			// makes sure that there is one to delete.
			element(nftMsgDelSetElem, o, false)
			element(nftMsgNewSetElem, o, true)
			acks += 2
		}
		acks++
	}
	batch = g.messageLocked(batch, unix.NFNL_MSG_BATCH_END, 0, binary.BigEndian.AppendUint16([]byte{0, 0}, unix.NFNL_SUBSYS_NFTABLES))
	last := g.seq - 1 // of the last element
	var result error
	err = raw.Control(func(fd uintptr) { result = exchange(int(fd), batch, last-uint32(acks)+1, last) })
	return errors.Join(err, result)
}

// messageLocked appends a message. Preconditions: mu is held.
func (g *gate) messageLocked(b []byte, kind, flags uint16, body []byte) []byte {
	g.seq++
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, g.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, body...)
}

// encode returns the body of a message about an element: the header of nfnetlink, then table, set and element.
func (o opening) encode(timeout bool) []byte {
	key := attribute(attrElemKey|unix.NLA_F_NESTED, attribute(attrDataValue, o.addr.AsSlice()))
	if timeout {
		key = append(key, attribute(attrElemTimeout, binary.BigEndian.AppendUint64(nil, uint64(o.hold.Milliseconds())))...)
	}
	body := []byte{unix.NFPROTO_INET, 0, 0, 0}
	body = append(body, attribute(attrListTable, append([]byte(egress.Table), 0))...)
	body = append(body, attribute(attrListSet, append([]byte(egress.NamesSet(o.service, o.addr.Is4())), 0))...)
	return append(body, attribute(attrListElements|unix.NLA_F_NESTED, attribute(attrListElem|unix.NLA_F_NESTED, key))...)
}

// attribute encodes a netlink attribute, padded to 4 bytes.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

// exchange sends a transaction and waits for the acknowledgements of its messages first to last. The error is the first
// of theirs.
func exchange(fd int, batch []byte, first, last uint32) error {
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	var failure error
	for seen := uint32(0); ; {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return errors.Join(failure, err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return fmt.Errorf("the kernel's answer cannot be read: %w", unix.EBADMSG)
			}
			kind, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
			if kind == unix.NLMSG_ERROR && size >= unix.SizeofNlMsghdr+4 && seq >= first-1 && seq <= last {
				if code := int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])); code != 0 && failure == nil {
					failure = unix.Errno(-code)
				}
				if seq == first-1 { // the whole transaction has failed
					return failure
				}
				seen++
			}
			b = b[min(len(b), (size+3)&^3):]
		}
		if seen >= last-first+1 {
			return failure
		}
	}
}
