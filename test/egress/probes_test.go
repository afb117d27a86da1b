package egress

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The first arguments that make the test's program one inside of a container: all probes, one attempt that a probe starts
// as another process, and servers at the probes' ports.
const (
	probeArg = "egress-probe"
	childArg = "egress-child"
	serveArg = "egress-serve"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case probeArg:
			runProbes(os.Args[2])
			os.Exit(0)
		case childArg:
			if _, err := ask("tcp", os.Args[2]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case serveArg:
			serve()
		}
	}
	os.Exit(m.Run())
}

// The destinations of the probes. The list has none of them. gateway is the host's address on the bridge.
const (
	other4   = "93.184.215.2"
	other6   = "2606:2800:220::2"
	private  = "10.66.0.1"
	metadata = "169.254.169.254"
)

var ports = []string{"53", "80", "443", "853"}

// probe is one attempt; it returns nil if it has reached a destination.
type probe struct {
	name string
	run  func() error
	// denied says that a container without a list cannot do it either, and why.
	denied string
	// asks is the name of a question. The test looks for it at the world's name server.
	asks string
}

// targets are the destinations of a run.
type targets struct{ Gateway, Neighbour string }

func runProbes(arg string) {
	var to targets
	if err := json.Unmarshal([]byte(arg), &to); err != nil {
		panic(err)
	}
	results := map[string]string{}
	for _, p := range probes(to) {
		results[p.name] = "reached"
		if err := p.run(); err != nil {
			results[p.name] = err.Error()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		panic(err)
	}
}

// wait bounds each attempt: a refusal comes at once.
const wait = 2 * time.Second

// ask sends a byte and waits for an answer.
func ask(network, at string) (net.Addr, error) {
	c, err := net.DialTimeout(network, at, wait)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.LocalAddr(), answered(c)
}

func answered(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 64))
	return err
}

func probes(to targets) (list []probe) {
	for _, host := range []string{other4, other6, "::ffff:" + other4, private, metadata, "fd00:ec2::254", "192.168.66.1", "100.64.66.1", to.Gateway, to.Neighbour} {
		for _, port := range ports {
			for _, proto := range []string{"tcp", "udp"} {
				at, network := net.JoinHostPort(host, port), proto
				list = append(list, probe{name: proto + " " + at, run: func() error {
					_, err := ask(network, at)
					return err
				}})
			}
		}
	}
	list = append(list, socketProbes()...)
	list = append(list, kernelProbes()...)
	list = append(list, processProbes()...)
	list = append(list, nameProbes()...)
	return append(list, rebindProbes()...)
}

// option is a socket that gets options before it connects to another server.
func option(network string, set func(fd int) error) func() error {
	return func() error {
		d := net.Dialer{Timeout: wait, Control: func(_, _ string, raw syscall.RawConn) (err error) {
			err2 := raw.Control(func(fd uintptr) { err = set(int(fd)) })
			return errors.Join(err, err2)
		}}
		c, err := d.Dial(network, other4+":80")
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return answered(c)
	}
}

// raw sends a packet through a raw socket, and waits for an answer from the other server.
func raw(family, kind, proto int, packet []byte) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind, proto)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		tv := unix.Timeval{Sec: 1}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(other4).As4()}); err != nil {
			return err
		}
		buf := make([]byte, 512)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return err
			}
			if in, ok := from.(*unix.SockaddrInet4); ok && netip.AddrFrom4(in.Addr).String() == other4 && n > 0 {
				return nil
			}
		}
	}
}

// echo is a request of ICMP.
func echo() []byte {
	b := []byte{8, 0, 0, 0, 0, 7, 0, 1}
	sum := uint32(8<<8) + 7 + 1
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

func socketProbes() []probe {
	address := netip.MustParseAddr(other4).As4()
	at80 := &unix.SockaddrInet4{Port: 80, Addr: address}
	udp := func(use func(fd int) error) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			tv := unix.Timeval{Sec: 1}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
			if err := use(fd); err != nil {
				return err
			}
			buf := make([]byte, 64)
			for {
				_, from, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					return err
				}
				if in, ok := from.(*unix.SockaddrInet4); !ok || in.Addr == address {
					return nil
				}
			}
		}
	}
	listed := &unix.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr(apiAddr).As4()}
	return []probe{
		{name: "tcp of the interface", run: option("tcp", func(fd int) error { return unix.BindToDevice(fd, "eth0") })},
		{name: "udp of the interface", run: option("udp", func(fd int) error { return unix.BindToDevice(fd, "eth0") })},
		{name: "tcp without routing", denied: "the other server is behind a router", run: option("tcp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1) })},
		{name: "tcp with a mark", denied: "needs CAP_NET_ADMIN, or CAP_NET_RAW on newer kernels", run: option("tcp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) })},
		{name: "tcp with a priority", run: option("tcp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 6) })},
		{name: "tcp, transparent", denied: "needs CAP_NET_ADMIN, or CAP_NET_RAW", run: option("tcp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) })},
		{name: "tcp from a free address", run: option("tcp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1) })},
		{name: "tcp with a source route", denied: "the kernel refuses source routes", run: option("tcp", func(fd int) error {
			return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, "\x83\x07\x04"+string(netip.MustParseAddr(apiAddr).AsSlice())+"\x00")
		})},
		{name: "tcp from a low port", run: option("tcp", func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			return unix.Bind(fd, &unix.SockaddrInet4{Port: 53})
		})},
		{name: "udp from a low port", run: option("udp", func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 53}) })},
		{name: "tcp with data in its first packet", run: func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			tv := unix.Timeval{Sec: 1}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
			if err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, at80); err != nil {
				return err
			}
			_, err = unix.Read(fd, make([]byte, 64))
			return err
		}},
		{name: "mptcp", run: func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 262)
			if err != nil {
				fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0) // this kernel has none
			}
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Connect(fd, at80)
		}},
		{name: "udp of a socket that was connected to a listed server", denied: "such a socket takes no answer of another server", run: udp(func(fd int) error {
			if err := unix.Connect(fd, listed); err != nil {
				return err
			}
			return unix.Sendto(fd, []byte("x"), 0, at80)
		})},
		{name: "udp of a socket that asked a listed server before", run: udp(func(fd int) error {
			if err := unix.Sendto(fd, []byte("x"), 0, listed); err != nil {
				return err
			}
			_, _, _ = unix.Recvfrom(fd, make([]byte, 64), 0)
			return unix.Sendto(fd, []byte("x"), 0, at80)
		})},
		{name: "udp of a socket that is connected again", run: udp(func(fd int) error {
			if err := unix.Connect(fd, listed); err != nil {
				return err
			}
			if err := unix.Connect(fd, at80); err != nil {
				return err
			}
			_, err := unix.Write(fd, []byte("x"))
			return err
		})},
		{name: "udp in fragments", run: udp(func(fd int) error { return unix.Sendto(fd, make([]byte, 20_000), 0, at80) })},
		{name: "udp in segments", run: udp(func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.SOL_UDP, 103, 1000) // UDP_SEGMENT
			return unix.Sendto(fd, make([]byte, 5000), 0, at80)
		})},
		{name: "udp with a source address", run: udp(func(fd int) error {
			return unix.Sendmsg(fd, []byte("x"), unix.PktInfo4(&unix.Inet4Pktinfo{}), at80, 0)
		})},
		{name: "udp broadcast", denied: "nobody answers", run: udp(func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{255, 255, 255, 255}})
		})},
		{name: "udp multicast", denied: "nobody answers", run: udp(func(fd int) error {
			return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{224, 0, 0, 1}})
		})},
		{name: "ping", run: raw(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, echo())},
		{name: "ping by a raw socket", run: raw(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, echo())},
		{name: "sctp", denied: "nobody answers", run: func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Connect(fd, at80)
		}},
		{name: "dccp", denied: "nobody answers", run: func() error {
			fd, err := unix.Socket(unix.AF_INET, 6, 33)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Connect(fd, at80)
		}},
	}
}

func kernelProbes() []probe {
	opened := func(family, kind, proto int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, proto)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
	}
	netlink := func(use func(fd int) error) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return use(fd)
		}
	}
	message := func(kind uint16) []byte {
		b := binary.NativeEndian.AppendUint32(nil, 20)
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		return append(b, 1, 0, 0, 0, 0, 0, 0, 0, unix.AF_INET, 0, 0, 0)
	}
	command := func(kind uint16) func() error {
		return netlink(func(fd int) error {
			if err := unix.Sendto(fd, message(kind), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
			buf := make([]byte, 256)
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil || n < 20 {
				return errors.Join(err, unix.EIO)
			}
			if code := int32(binary.NativeEndian.Uint32(buf[16:])); code != 0 {
				return unix.Errno(-code)
			}
			return nil
		})
	}
	const noAdmin = "needs CAP_NET_ADMIN"
	return []probe{
		{name: "frames of a packet socket", run: opened(unix.AF_PACKET, unix.SOCK_RAW, 0x0003)},
		{name: "packets of a packet socket", run: opened(unix.AF_PACKET, unix.SOCK_DGRAM, 0x0008)},
		{name: "packets with a header of one's own", run: opened(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)},
		{name: "packets of IPIP", run: opened(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_IPIP)},
		{name: "packets of GRE", run: opened(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_GRE)},
		{name: "segments of TCP", run: opened(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)},
		{name: "datagrams of UDP", run: opened(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)},
		{name: "packets of IPv6 with a header of one's own", run: opened(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)},
		{name: "frames of XDP", denied: "needs rings", run: func() error {
			fd, err := unix.Socket(44, unix.SOCK_RAW, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.ENOTCONN
		}},
		{name: "the virtual machine's host", denied: "the default profile", run: opened(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{name: "remove all rules", denied: noAdmin, run: command(unix.NFNL_SUBSYS_NFTABLES<<8 | 2)},
		{name: "list connections", denied: noAdmin, run: command(unix.NFNL_SUBSYS_CTNETLINK<<8 | 1)},
		{name: "make a connection known", denied: noAdmin, run: command(unix.NFNL_SUBSYS_CTNETLINK << 8)},
		{name: "iptables by setsockopt", denied: noAdmin, run: func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.SetsockoptString(fd, unix.SOL_IP, 64, strings.Repeat("\x00", 96))
		}},
		{name: "another address of the interface", denied: noAdmin, run: func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			var req [40]byte
			copy(req[:], "eth0")
			req[16] = unix.AF_INET
			copy(req[20:], netip.MustParseAddr("10.0.77.77").AsSlice())
			if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&req[0]))); e != 0 {
				return e
			}
			return nil
		}},
		{name: "a program of the kernel's", denied: "the default profile", run: func() error {
			if _, _, e := unix.Syscall(unix.SYS_BPF, 0, 0, 0); e != unix.EINVAL {
				return e
			}
			return nil
		}},
		{name: "io_uring", denied: "the default profile", run: func() error {
			var params [120]byte
			if _, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])), 0); e != 0 {
				return e
			}
			return nil
		}},
		{name: "a parameter of the network", denied: "/proc/sys is read-only", run: func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		}},
	}
}

// processProbes connect from other processes than the container's first one.
func processProbes() []probe {
	child := func(change func(*exec.Cmd)) func() error {
		return func() error {
			cmd := exec.CommandContext(context.Background(), "/proc/self/exe", childArg, other4+":80")
			cmd.SysProcAttr = &syscall.SysProcAttr{}
			change(cmd)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
			}
			return nil
		}
	}
	return []probe{
		{name: "a child", run: child(func(*exec.Cmd) {})},
		{name: "a child of another user", run: child(func(c *exec.Cmd) { c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} })},
		{name: "a child in a session of its own", run: child(func(c *exec.Cmd) { c.SysProcAttr.Setsid = true })},
		{name: "a shell", run: func() error {
			return exec.CommandContext(context.Background(), "/bin/sh", "-c", "nc -w 2 "+other4+" 80").Run()
		}},
		{name: "a child in a network namespace of its own", denied: "the default profile", run: child(func(c *exec.Cmd) {
			c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET
		})},
		{name: "the namespace of the container's first process", denied: "needs CAP_SYS_ADMIN", run: func() error {
			f, err := os.Open("/proc/1/ns/net")
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}},
	}
}

// serve answers at the probes' ports.
func serve() {
	for _, port := range ports {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			panic(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					panic(err)
				}
				_, _ = c.Write([]byte("x"))
				_ = c.Close()
			}
		}()
		p, err := net.ListenPacket("udp", ":"+port)
		if err != nil {
			panic(err)
		}
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := p.ReadFrom(buf)
				if err != nil {
					panic(err)
				}
				_, _ = p.WriteTo(buf[:n], from)
			}
		}()
	}
	fmt.Println("serves")
	select {}
}
