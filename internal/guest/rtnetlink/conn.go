// Package rtnetlink changes and lists the kernel's links, addresses, routes and neighbours, with as little
// code as the agent of a small guest needs. The packages of the node use github.com/vishvananda/netlink instead.
//
// It knows nothing about Longshore. Start at Conn.
package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// attempts is how often a list is requested that changed while it was read. The last one is returned as it is.
const attempts = 8

var errShort = errors.New("a message of netlink is cut short")

// Conn is a connection to the kernel's routing. One goroutine may use it at a time.
type Conn struct {
	fd       int
	sequence uint32
	buf      []byte
}

// Open connects to the kernel's routing, in the calling thread's network namespace.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: %w", err), unix.Close(fd))
	}
	return &Conn{fd: fd, buf: make([]byte, 64<<10)}, nil
}

// Close closes the connection.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// change has the kernel change something.
func (c *Conn) change(kind, flags uint16, body []byte) error {
	_, err := c.ask(kind, flags|unix.NLM_F_ACK, body, func([]byte) error { return nil })
	return err
}

// list requests a list of the kernel and decodes each message of kind answer in it. A list that changed while it
// was read is requested again.
func list[T any](c *Conn, kind uint16, body []byte, decode func(body []byte) (T, bool, error)) (out []T, err error) {
	for range attempts {
		out = nil
		var interrupted bool
		interrupted, err = c.ask(kind, unix.NLM_F_DUMP, body, func(body []byte) error {
			one, ok, err := decode(body)
			if ok && err == nil {
				out = append(out, one)
			}
			return err
		})
		if !interrupted && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return out, err
}

// ask sends a request, and calls each with the messages of the answer.
func (c *Conn) ask(kind, flags uint16, body []byte, each func(body []byte) error) (interrupted bool, err error) {
	c.sequence++
	if err := unix.Sendto(c.fd, message(kind, flags|unix.NLM_F_REQUEST, c.sequence, body), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	var failed error
	for {
		n, _, flags, _, err := unix.Recvmsg(c.fd, c.buf, nil, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		if flags&unix.MSG_TRUNC != 0 {
			return false, errShort
		}
		a := answer{sequence: c.sequence, each: each}
		done, err := a.read(c.buf[:n])
		interrupted = interrupted || a.interrupted
		failed = errors.Join(failed, err)
		if done || errors.Is(err, errShort) {
			return interrupted, failed
		}
	}
}

// message encodes a request.
func message(kind, flags uint16, sequence uint32, body []byte) []byte {
	order := binary.NativeEndian
	b := order.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint32(b, sequence)
	b = order.AppendUint32(b, 0)
	return append(b, body...)
}

// answer reads the kernel's answer to the request with a sequence number.
type answer struct {
	sequence    uint32
	interrupted bool // the list changed meanwhile
	each        func(body []byte) error
}

// read reads a datagram of messages, and reports whether the answer ends in it. Messages of other requests are
// not for us.
func (a *answer) read(b []byte) (done bool, err error) {
	order := binary.NativeEndian
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return true, errShort
		}
		size, kind, flags, sequence := int(order.Uint32(b)), order.Uint16(b[4:]), order.Uint16(b[6:]), order.Uint32(b[8:])
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return true, errShort
		}
		body := b[unix.NLMSG_HDRLEN:size]
		b = b[min(align(size), len(b)):]
		if sequence != a.sequence {
			continue
		}
		a.interrupted = a.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, errors.Join(err, errShort)
			}
			if code := int32(order.Uint32(body)); code < 0 {
				err = errors.Join(err, unix.Errno(-int64(code)))
			}
			return true, err
		case unix.NLMSG_NOOP:
		default:
			err = errors.Join(err, a.each(body))
		}
	}
	return false, err
}

func align(n int) int { return (n + 3) &^ 3 }

// appendAttribute appends an attribute to a message.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	order := binary.NativeEndian
	b = order.AppendUint16(b, uint16(4+len(value)))
	b = order.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// attributes calls each with the attributes in b.
func attributes(b []byte, each func(kind uint16, value []byte)) error {
	order := binary.NativeEndian
	for len(b) > 0 {
		if len(b) < 4 {
			return errShort
		}
		size, kind := int(order.Uint16(b)), order.Uint16(b[2:])
		if size < 4 || size > len(b) {
			return errShort
		}
		each(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:size])
		b = b[min(align(size), len(b)):]
	}
	return nil
}
