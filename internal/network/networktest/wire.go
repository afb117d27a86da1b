package networktest

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// kind returns the type and protocol of sockets by name.
func kind(proto string) (typ, number int) {
	switch proto {
	case "udp":
		return unix.SOCK_DGRAM, unix.IPPROTO_UDP
	default:
		return unix.SOCK_STREAM, unix.IPPROTO_TCP
	}
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func fromSockaddr(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr).Unmap()
	default:
		return netip.Addr{}
	}
}

func open(proto string, at netip.AddrPort) (int, unix.Sockaddr, error) {
	family, sa := sockaddr(at)
	typ, number := kind(proto)
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, number)
	if err != nil {
		return -1, nil, fmt.Errorf("socket %s: %w", proto, err)
	}
	tv := unix.NsecToTimeval(roottest.Patience().Nanoseconds())
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &tv); err != nil {
			return -1, nil, err
		}
	}
	return fd, sa, nil
}

// Serve answers clients of a port in the calling thread's namespace with their own address, until
// stop is called or the test ends. proto is tcp or udp; at's address may be :: for both families.
func Serve(t testing.TB, proto string, at netip.AddrPort) (stop func(), err error) {
	fd, sa, err := open(proto, at)
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, fmt.Errorf("bind %s %s: %w", proto, at, err)
	}
	typ, _ := kind(proto)
	if typ == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 16); err != nil {
			return nil, err
		}
	}
	halt := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var err error
			if typ == unix.SOCK_STREAM {
				err = answerStream(fd)
			} else {
				err = answerPacket(fd)
			}
			select {
			case <-halt:
				return
			default:
			}
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(halt)
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		if typ == unix.SOCK_DGRAM {
			wakePacket(fd)
		}
		<-ended
		_ = unix.Close(fd)
	})
	t.Cleanup(stop)
	return stop, nil
}

// wakePacket ends a blocking receive: shutdown does that for a socket that was connected once.
func wakePacket(fd int) {
	if sa, err := unix.Getsockname(fd); err == nil {
		_ = unix.Connect(fd, sa)
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
}

func answerStream(fd int) error {
	c, from, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	_, err = unix.Write(c, []byte(fromSockaddr(from).String()))
	_ = unix.Shutdown(c, unix.SHUT_WR)
	return errors.Join(err, unix.Close(c))
}

func answerPacket(fd int) error {
	var buf [64]byte
	_, from, err := unix.Recvfrom(fd, buf[:], 0)
	if err != nil || from == nil {
		return err
	}
	return unix.Sendto(fd, []byte(fromSockaddr(from).String()), 0, from)
}

// again repeats a call that a signal has interrupted: the kernel does not do that on a socket
// with a timeout, and the Go runtime sends signals to its threads.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Ask connects to a port that Serve serves, from the calling thread's namespace, and returns the
// address that the server saw.
func Ask(proto, at string) (string, error) {
	to, err := netip.ParseAddrPort(at)
	if err != nil {
		return "", err
	}
	fd, sa, err := open(proto, to)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := again(func() error { return unix.Connect(fd, sa) }); err != nil && !errors.Is(err, unix.EISCONN) {
		return "", fmt.Errorf("connect %s %s: %w", proto, at, err)
	}
	if proto == "udp" {
		if _, err := unix.Write(fd, []byte("who am I")); err != nil {
			return "", err
		}
	}
	var buf [64]byte
	var n int
	err = again(func() (err error) {
		n, err = unix.Read(fd, buf[:])
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read %s %s: %w", proto, at, err)
	}
	return string(buf[:n]), nil
}

// Ask is Ask from inside the namespace.
func (n *Namespace) Ask(proto, at string) (string, error) {
	var saw string
	err := n.Try(func() (err error) {
		saw, err = Ask(proto, at)
		return err
	})
	return saw, err
}

// Serve is Serve inside the namespace, on every address.
func (n *Namespace) Serve(t testing.TB, proto string, port uint16) {
	t.Helper()
	n.Do(t, func() error {
		stop, err := Serve(t, proto, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err == nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.stops = append(n.stops, stop)
		}
		return err
	})
}

// Run executes a program in the test's own namespace and returns its output.
func Run(t testing.TB, line string) string {
	t.Helper()
	args := strings.Fields(line)
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// Await waits until cond is true, testing it again after every change message of the kernel: of
// links (group RTNLGRP_LINK) or of nftables.
func Await(t testing.TB, news News, what string, cond func() bool) {
	t.Helper()
	c, err := netlink.Dial(news.family, &netlink.Config{Groups: news.groups})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetReadDeadline(time.Now().Add(roottest.Patience())); err != nil {
		t.Fatal(err)
	}
	for !cond() {
		if _, err := c.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if cond() {
				return
			}
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// News selects the messages that Await listens to.
type News struct {
	family int
	groups uint32
}

// LinkNews selects changes of links.
func LinkNews() News { return News{unix.NETLINK_ROUTE, 1 << (unix.RTNLGRP_LINK - 1)} }

// RuleNews selects changes of nftables.
func RuleNews() News { return News{unix.NETLINK_NETFILTER, 1 << (7 - 1)} }

// Send sends one datagram.
func Send(proto, at string) error {
	to, err := netip.ParseAddrPort(at)
	if err != nil {
		return err
	}
	fd, sa, err := open(proto, to)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, []byte("knock"), 0, sa)
}

// Client is a UDP socket that stays open, so that all it sends is one flow.
type Client struct{ fd int }

// NewClient returns a Client in the calling thread's namespace; it is closed at the end of the
// test.
func NewClient(t testing.TB, at string) (*Client, error) {
	to, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, err
	}
	fd, sa, err := open("udp", to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &Client{fd}, unix.Connect(fd, sa)
}

// Send sends one datagram.
func (c *Client) Send() error {
	_, err := unix.Write(c.fd, []byte("knock"))
	return err
}

// Ask sends a datagram and returns the address that the server saw. A refusal of an earlier
// datagram is not an answer to this one.
func (c *Client) Ask() (string, error) {
	var buf [64]byte
	for {
		err := c.Send()
		if errors.Is(err, unix.ECONNREFUSED) {
			continue // reported in place of the send
		}
		if err != nil {
			return "", err
		}
		n, err := unix.Read(c.fd, buf[:])
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EINTR) {
			continue
		}
		return string(buf[:max(n, 0)]), err
	}
}
