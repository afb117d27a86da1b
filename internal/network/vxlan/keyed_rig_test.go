package vxlan_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// The numbers of the two networks of a rig.
const (
	secretVNI = 4097
	openVNI   = 4098
)

// keyed is a node that has an encrypted network, app, and one in clear, side.
type keyed struct {
	*node
	keys *vxlan.Keyring
	side *vxlan.Network
}

// key is the n-th of a cluster.
func key(n int) vxlan.Key {
	return vxlan.Key{Key: [16]byte([]byte(fmt.Sprintf("key number %05d", n))), ID: uint32(100 + n)}
}

// keys are several, the one to send by first.
func keys(n ...int) (list []vxlan.Key) {
	for _, i := range n {
		list = append(list, key(i))
	}
	return list
}

func (k *keyed) defs() (app, side vxlan.Definition) {
	app, side = k.def(), k.def()
	app.Encrypted, app.Keys, app.MTU = true, k.keys, 1424
	side.Name, side.Keys = "side", k.keys
	side.Subnets = []vxlan.Subnet{{Range: netip.MustParsePrefix("10.0.2.0/24"), Gateway: netip.MustParseAddr("10.0.2.1"), VNI: openVNI}}
	return app, side
}

// start is an agent's start; it adopts a former one's objects.
func (k *keyed) start() {
	k.t.Helper()
	former := k.keys
	k.ns.Do(k.t, func() (err error) {
		k.keys, err = vxlan.NewKeyring(slog.New(slog.NewTextHandler(k.t.Output(), nil)))
		return err
	})
	app, side := k.defs()
	var err error
	if k.net, err = k.try(app); err == nil {
		k.side, err = k.try(side)
	}
	if err != nil {
		if errdefs.IsFailedPrecondition(err) {
			k.t.Skipf("%v", err)
		}
		k.t.Fatal(err)
	}
	if former != nil {
		_ = former.Close()
	}
}

// newKeyed makes two nodes with both networks and without keys, and a machine that is on their
// link.
func newKeyed(t *testing.T) (list []*keyed, stranger *node) {
	t.Helper()
	nodes := newNodes(t, 3)
	for _, n := range nodes[:2] {
		k := &keyed{node: n}
		k.start()
		t.Cleanup(func() {
			if err := errors.Join(k.keys.Remove(n.dir, "app"), k.keys.Remove(n.dir, "side"), k.keys.Close()); err != nil {
				t.Error(err)
			}
		})
		list = append(list, k)
	}
	return list, nodes[2]
}

func (k *keyed) set(n ...int) {
	k.t.Helper()
	if err := k.keys.SetKeys(keys(n...)); err != nil {
		k.t.Fatal(err)
	}
}

// clear is the same node seen with its network in clear.
func (k *keyed) clear() *node { return &node{t: k.t, n: k.n, ns: k.ns, dir: k.dir, net: k.side} }

// associations are the indices of those with our label, by direction as a node has them.
func (k *keyed) associations() (list []string) {
	k.t.Helper()
	for block := range strings.SplitSeq(k.run("ip xfrm state"), "\nsrc ") {
		if f := strings.Fields(strings.TrimPrefix(block, "src ")); len(f) > 7 && strings.Contains(block, "/32 dst ") && strings.Contains(block, "reqid "+strconv.Itoa(0xd0c4e3)) {
			list = append(list, f[0]+">"+f[2]+" "+f[6])
		}
	}
	slices.Sort(list)
	return list
}

// counted is a rule's counter of packets in a chain of ours.
func (k *keyed) counted(chain string) int {
	k.t.Helper()
	m := regexp.MustCompile(`counter packets (\d+)`).FindStringSubmatch(k.run("nft list chain inet longshore-sealed " + chain))
	if m == nil {
		return -1
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// failures is a counter of IPsec's.
func (k *keyed) failures(name string) int {
	k.t.Helper()
	for line := range strings.Lines(k.run("cat /proc/net/xfrm_stat")) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	k.t.Fatalf("no counter %s", name)
	return 0
}

// tap sees all packets on the nodes' link.
type tap struct {
	mu   sync.Mutex // guards esp, vnis
	esp  map[uint32]int
	vnis map[uint32]int
}

func newTap(t *testing.T) *tap {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(uint16(unix.ETH_P_ALL>>8|unix.ETH_P_ALL&0xff<<8)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
		t.Fatal(err)
	}
	p := &tap{esp: map[uint32]int{}, vnis: map[uint32]int{}}
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		buf := make([]byte, 70000)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			select {
			case <-stop:
				return
			default:
			}
			if err == nil {
				p.note(buf[:n])
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		ended.Wait()
		_ = unix.Close(fd)
	})
	return p
}

func (p *tap) note(b []byte) {
	if len(b) < 60 {
		return
	}
	proto, body := b[9], b[int(b[0]&15)*4:]
	if b[0]>>4 == 6 {
		proto, body = b[6], b[40:]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case proto == unix.IPPROTO_ESP:
		p.esp[binary.BigEndian.Uint32(body)]++
	case proto == unix.IPPROTO_UDP && binary.BigEndian.Uint16(body[2:]) == 4789:
		p.vnis[binary.BigEndian.Uint32(body[12:])>>8]++
	}
}

// saw returns the number of a network's packets in clear, and the indices of encrypted ones.
func (p *tap) saw(vni uint32) (plain int, indices []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.esp {
		indices = append(indices, fmt.Sprintf("%#010x", i))
	}
	slices.Sort(indices)
	return p.vnis[vni], indices
}

// frame is a VXLAN packet with a datagram from one task to another.
func frame(vni uint32, from, to task, port uint16, payload string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 7777)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, from.addr.AsSlice()...), to.addr.AsSlice()...)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum&0xffff))
	dst, _ := net.ParseMAC(vxlan.MACFor(to.addr))
	src, _ := net.ParseMAC(vxlan.MACFor(from.addr))
	b := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	b = append(append(append(b, dst...), src...), 8, 0)
	return append(append(b, ip...), udp...)
}

// inject sends a packet to another node as any program can.
func (n *node) inject(to *node, packet []byte) {
	n.t.Helper()
	n.ns.Do(n.t, func() error {
		c, err := (&net.Dialer{}).DialContext(n.t.Context(), "udp", netip.AddrPortFrom(to.addr(), 4789).String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write(packet)
		return err
	})
}

// mailbox receives datagrams in a task.
func (x task) mailbox(port uint16) net.PacketConn {
	x.on.t.Helper()
	var c net.PacketConn
	x.ns.Do(x.on.t, func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(x.on.t.Context(), "udp4", netip.AddrPortFrom(x.addr, port).String())
		return err
	})
	x.on.t.Cleanup(func() { _ = c.Close() })
	return c
}

// next is the next datagram in a mailbox.
func next(t *testing.T, c net.PacketConn) string {
	t.Helper()
	buf := make([]byte, 2000)
	_ = c.SetReadDeadline(time.Now().Add(roottest.Patience()))
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// post sends a datagram from a task.
func (x task) post(to task, port uint16, text string) {
	x.on.t.Helper()
	x.ns.Do(x.on.t, func() error {
		c, err := (&net.Dialer{}).DialContext(x.on.t.Context(), "udp4", netip.AddrPortFrom(to.addr, port).String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte(text))
		return err
	})
}

// pinging has a task ask another without a pause, over several sockets, until the returned
// function is called; that says how many answers came, and fails when one did not.
func pinging(t *testing.T, x, y task) (stop func() int64, answers *atomic.Int64) {
	t.Helper()
	echo := y.mailbox(90)
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	answers = new(atomic.Int64)
	var ended sync.WaitGroup
	var over atomic.Bool
	for range 3 {
		var c net.Conn
		x.ns.Do(t, func() (err error) {
			c, err = (&net.Dialer{}).DialContext(t.Context(), "udp4", netip.AddrPortFrom(y.addr, 90).String())
			return err
		})
		ended.Go(func() {
			defer func() { _ = c.Close() }()
			buf := make([]byte, 64)
			for !over.Load() {
				if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(answers.Load()))); err != nil {
					t.Errorf("after %d answers: %v", answers.Load(), err)
					return
				}
				_ = c.SetReadDeadline(time.Now().Add(roottest.Patience() / 4))
				if _, err := c.Read(buf); err != nil {
					t.Errorf("lost after %d answers: %v", answers.Load(), err)
					return
				}
				answers.Add(1)
			}
		})
	}
	return func() int64 {
		over.Store(true)
		ended.Wait()
		return answers.Load()
	}, answers
}

// further waits until there are more answers.
func further(t *testing.T, answers *atomic.Int64, count int64) {
	t.Helper()
	until := answers.Load() + count
	roottest.Eventually(t, "answers go on", func() bool { return t.Failed() || answers.Load() >= until })
}
