package networktest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// SCTP is sent and received here as raw packets: kernels route and translate it even when they
// have no SCTP sockets.

// sctpInit is the first packet of an association.
func sctpInit(from, to uint16) []byte {
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12] = 1                                    // INIT
	binary.BigEndian.PutUint16(b[14:], 20)       // chunk length
	binary.BigEndian.PutUint32(b[16:], 0x1234)   // initiate tag
	binary.BigEndian.PutUint32(b[20:], 64*1024)  // window
	binary.BigEndian.PutUint16(b[24:], 1)        // streams out
	binary.BigEndian.PutUint16(b[26:], 1)        // and in
	binary.BigEndian.PutUint32(b[28:], 0xabcdef) // first number
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func rawSCTP(a netip.Addr) (int, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(roottest.Patience().Nanoseconds())
	return fd, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// KnockSCTP sends the first packet of an association from one namespace (nil: the test's own) to an
// address, and returns the source address and destination port that the other namespace sees.
func KnockSCTP(t testing.TB, from *Namespace, to netip.AddrPort, arrives *Namespace) (saw netip.Addr, port uint16, err error) {
	t.Helper()
	listener := -1
	arrives.Do(t, func() (err error) {
		listener, err = rawSCTP(to.Addr())
		return err
	})
	defer func() { _ = unix.Close(listener) }()
	send := func() error {
		fd, err := rawSCTP(to.Addr())
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_, sa := sockaddr(netip.AddrPortFrom(to.Addr(), 0)) // raw sockets have no ports
		return unix.Sendto(fd, sctpInit(5000, to.Port()), 0, sa)
	}
	if from == nil {
		err = send()
	} else {
		err = from.Try(send)
	}
	if err != nil {
		return saw, 0, fmt.Errorf("send to %s: %w", to, err)
	}
	var buf [256]byte
	for {
		n, sa, err := unix.Recvfrom(listener, buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return saw, 0, fmt.Errorf("nothing arrives that was sent to %s: %w", to, err)
		}
		p := buf[:n]
		if to.Addr().Is4() { // the packet has its IP header
			p = p[int(p[0]&0xf)*4:]
		}
		if len(p) > 12 && p[12] == 1 {
			return fromSockaddr(sa), binary.BigEndian.Uint16(p[2:]), nil
		}
	}
}
