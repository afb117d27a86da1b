package network_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// mesh is a network over two machines, the test's own and another one: 198.51.100.1 and .2.
type mesh struct {
	t       *testing.T
	r       *rig
	on      *vxlan.Network // the test's own part
	far     *networktest.Namespace
	farOn   *vxlan.Network
	subnets []core.OverlaySubnet
	dirs    [2]string
}

// meshRange is that of the ingress network of a Swarm.
const meshRange = "10.0.0.0/24"

func newMesh(t *testing.T, r *rig, span string) *mesh {
	t.Helper()
	m := &mesh{t: t, r: r, far: networktest.NewNamespace(t), dirs: [2]string{t.TempDir(), t.TempDir()}}
	p := netip.MustParsePrefix(span)
	m.subnets = []core.OverlaySubnet{{Range: p, Gateway: p.Addr().Next(), VNI: 4096}}
	networktest.Run(t, "ip link add wire0 type veth peer name wire1 netns "+m.far.Path)
	networktest.Run(t, "ip addr add 198.51.100.1/24 dev wire0")
	networktest.Run(t, "ip link set wire0 up")
	for _, line := range []string{"link set lo up", "addr add 198.51.100.2/24 dev wire1", "link set wire1 up"} {
		networktest.Run(t, "nsenter --net="+m.far.Path+" ip "+line)
	}
	m.on = m.open(0)
	m.far.Do(t, func() error { m.farOn = m.open(1); return nil })
	for _, dir := range m.dirs {
		t.Cleanup(func() { _ = vxlan.Remove(dir, "ingress") })
	}
	return m
}

func machine(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}) }

// open opens the network as the agent of a machine does.
func (m *mesh) open(i int) *vxlan.Network {
	m.t.Helper()
	on, err := openOverlay(m.dirs[i], m.subnets, i, slog.New(slog.NewTextHandler(m.t.Output(), nil)))
	if err != nil {
		m.t.Fatal(err)
	}
	return on
}

func openOverlay(dir string, subnets []core.OverlaySubnet, i int, log *slog.Logger) (*vxlan.Network, error) {
	def := vxlan.Definition{Name: "ingress", MTU: 1450, Local: machine(i)}
	for _, s := range subnets {
		def.Subnets = append(def.Subnets, vxlan.Subnet(s))
	}
	return vxlan.Open(dir, def, log)
}

// addr is an address of the network.
func (m *mesh) addr(n int) netip.Addr {
	b := m.subnets[0].Range.Addr().AsSlice()
	b[len(b)-1] = byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (m *mesh) prefix(n int) netip.Prefix {
	return netip.PrefixFrom(m.addr(n), m.subnets[0].Range.Bits())
}

// ingress is the interface of the test's own machine on the network: number 2.
func (m *mesh) ingress() core.Ingress {
	return core.Ingress{Network: "ingress", Addrs: []netip.Prefix{m.prefix(2)}}
}

// openIngress opens it, and tells the other machine of it.
func (m *mesh) openIngress() {
	m.t.Helper()
	if err := m.r.net.OpenIngress(m.ingress(), m.on, m.subnets); err != nil {
		m.t.Fatal(err)
	}
	m.cleanup()
	m.know(m.farOn, 2, 0)
}

// cleanup unpins the ingress' namespace at the end of the test.
func (m *mesh) cleanup() {
	m.t.Cleanup(func() { _ = kernel.Unpin(filepath.Join(m.r.dir, "ingress")) })
}

func (m *mesh) know(on *vxlan.Network, n, at int) {
	m.t.Helper()
	a := m.addr(n)
	if err := on.SetPeer(a.String(), vxlan.Peer{Addr: a, MAC: vxlan.MACFor(a), Node: machine(at)}); err != nil {
		m.t.Fatal(err)
	}
}

// task is a namespace with address n, on one of the two machines.
func (m *mesh) task(n, at int) *networktest.Namespace {
	m.t.Helper()
	ns := networktest.NewNamespace(m.t)
	here, there := m.on, m.farOn
	if at == 1 {
		here, there = there, here
	}
	if _, err := here.Attach(ns.Path, vxlan.Attachment{Key: fmt.Sprint("task", n), Interface: "eth0", Addrs: []netip.Prefix{m.prefix(n)}}); err != nil {
		m.t.Fatal(err)
	}
	m.know(there, n, at)
	return ns
}

// serve has a task answer on a port with its number and the client's address, and each line or
// datagram with the same.
func (m *mesh) serve(ns *networktest.Namespace, n int, proto string, port uint16) {
	m.t.Helper()
	ns.Do(m.t, func() error {
		if proto == "udp" {
			c, err := new(net.ListenConfig).ListenPacket(m.t.Context(), "udp", fmt.Sprintf(":%d", port))
			if err == nil {
				m.t.Cleanup(func() { _ = c.Close() })
				go answerPackets(c, n)
			}
			return err
		}
		l, err := new(net.ListenConfig).Listen(m.t.Context(), "tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			m.t.Cleanup(func() { _ = l.Close() })
			go answerConns(l, n)
		}
		return err
	})
}

func client(a net.Addr) netip.Addr {
	from, _ := netip.ParseAddrPort(a.String())
	return from.Addr().Unmap()
}

func answerPackets(c net.PacketConn, n int) {
	buf := make([]byte, 1500)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(fmt.Appendf(nil, "%d %s\n", n, client(from)), from)
	}
}

func answerConns(l net.Listener, n int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "%d %s\n", n, client(c.RemoteAddr()))
			_, _ = io.Copy(c, c)
		}()
	}
}

// session is a connection that a task has answered.
type session struct {
	net.Conn
	r    *bufio.Reader
	task int
	saw  string // the client's address, as the task sees it
}

// dial connects from a namespace, nil for the test's own machine.
func dial(t *testing.T, from *networktest.Namespace, proto, to string) (s session, err error) {
	t.Helper()
	connect := func() (err error) {
		d := net.Dialer{Timeout: roottest.Patience()}
		s.Conn, err = d.DialContext(t.Context(), proto, to)
		return err
	}
	if from == nil {
		err = connect()
	} else {
		err = from.Try(connect)
	}
	if err != nil {
		return s, err
	}
	t.Cleanup(func() { _ = s.Close() })
	_ = s.SetDeadline(time.Now().Add(roottest.Patience()))
	if proto == "udp" {
		if _, err := fmt.Fprintln(s, "hello"); err != nil {
			return s, err
		}
	}
	s.r = bufio.NewReader(s)
	_, err = fmt.Fscanf(s.r, "%d %s\n", &s.task, &s.saw)
	return s, err
}

// echo says something that must come back.
func (s session) echo(t *testing.T) {
	t.Helper()
	if _, err := fmt.Fprintln(s, "hello"); err != nil {
		t.Errorf("connection to task %d: %v", s.task, err)
	} else if line, err := s.r.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("connection to task %d: %q, %v", s.task, line, err)
	}
}

// over checks that a connection has ended.
func (s session) over(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(s, "hello")
	if err == nil {
		_, err = s.r.ReadString('\n')
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("connection to task %d, which is gone: %v", s.task, err)
	}
}

// answers checks that these tasks answer at an address, in turn, and see the client as saw.
func answers(t *testing.T, from *networktest.Namespace, proto, to string, saw netip.Addr, tasks ...int) {
	t.Helper()
	got := map[int]int{}
	for range 2 * len(tasks) {
		s, err := dial(t, from, proto, to)
		if err != nil {
			t.Errorf("%s %s: %v", proto, to, err)
			return
		}
		if s.saw != saw.String() {
			t.Errorf("%s %s: task %d sees %s, want %s", proto, to, s.task, s.saw, saw)
		}
		got[s.task]++
		_ = s.Close()
	}
	for _, n := range tasks {
		if got[n] != 2 {
			t.Errorf("%s %s: answered %v, want each of %v twice", proto, to, got, tasks)
		}
	}
}

// refused checks that a port says so at once.
func refused(t *testing.T, from *networktest.Namespace, proto, to string) {
	t.Helper()
	if s, err := dial(t, from, proto, to); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s %s: task %d answers, %v; want a refusal", proto, to, s.task, err)
	}
}

func (m *mesh) port(proto string, port uint16, tasks ...int) core.PublishedPort {
	p := core.PublishedPort{Proto: proto, Port: port}
	for _, n := range tasks {
		p.Backends = append(p.Backends, core.OverlayBackend{Addr: m.addr(n)})
	}
	return p
}

// publish publishes ports, and wants these to be taken.
func (m *mesh) publish(list []core.PublishedPort, taken ...uint16) {
	m.t.Helper()
	got, err := m.r.net.PublishAll(list)
	if err != nil {
		m.t.Fatal(err)
	}
	ok := len(got) == len(taken)
	for i := 0; ok && i < len(got); i++ {
		ok = got[i].Port == taken[i] && got[i].Err != nil
	}
	if !ok {
		m.t.Errorf("taken: %v, want %v", got, taken)
	}
}

// left checks that nothing of the ingress is left, but tasks on the network.
func (m *mesh) left(tasks int) {
	m.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, out := range []string{networktest.Run(m.t, "nft list tables"), networktest.Run(m.t, "ip -o link"), string(mounts)} {
		if strings.Contains(out, "longshore-in") || strings.Contains(out, m.r.dir+"/ingress") {
			m.t.Errorf("left: %s", out)
		}
	}
	if len(m.on.Attached()) != tasks {
		m.t.Errorf("left on the network: %v", m.on.Attached())
	}
}

// knocks are connections that must get no answer, not a refusal either.
type knocks []knock

type knock struct {
	fd int
	to string
}

// knock begins a connection from a namespace.
func (k *knocks) knock(t *testing.T, from *networktest.Namespace, to netip.AddrPort) {
	t.Helper()
	from.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		if errors.Is(err, unix.EINPROGRESS) {
			*k = append(*k, knock{fd, to.String()})
			return nil
		}
		return fmt.Errorf("knock at %s: %w", to, err)
	})
}

// silent checks them, after the answer to a later request.
func (k knocks) silent(t *testing.T) {
	t.Helper()
	for _, one := range k {
		polled := []unix.PollFd{{Fd: int32(one.fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(polled, 0); err != nil || n == 0 {
			continue
		}
		code, err := unix.GetsockoptInt(one.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if errno := unix.Errno(code); err != nil || errno != unix.EHOSTUNREACH && errno != unix.ENETUNREACH {
			t.Errorf("%s answers: %v", one.to, errno)
		}
	}
}
