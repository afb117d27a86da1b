package overlay_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
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

	"github.com/longshore/longshore/internal/network/overlay"
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
	keys *overlay.Keyring
	side *overlay.Network
}

// key is the n-th of a cluster.
func key(n int) overlay.Key {
	return overlay.Key{Key: [16]byte([]byte(fmt.Sprintf("key number %05d", n))), ID: uint32(100 + n)}
}

// keys are several, the one to send by first.
func keys(n ...int) (list []overlay.Key) {
	for _, i := range n {
		list = append(list, key(i))
	}
	return list
}

func (k *keyed) defs() (app, side overlay.Definition) {
	app, side = k.def(), k.def()
	app.Encrypted, app.Keys, app.MTU = true, k.keys, 1424
	side.Name, side.Keys = "side", k.keys
	side.Subnets = []overlay.Subnet{{Range: netip.MustParsePrefix("10.0.2.0/24"), Gateway: netip.MustParseAddr("10.0.2.1"), VNI: openVNI}}
	return app, side
}

// start is what an agent does at its start; what there was of a former one is adopted.
func (k *keyed) start() {
	k.t.Helper()
	former := k.keys
	k.ns.Do(k.t, func() (err error) {
		k.keys, err = overlay.NewKeyring(slog.New(slog.NewTextHandler(k.t.Output(), nil)))
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

// saw returns how many packets of a network there were in clear, and by which indices others were
// encrypted.
func (p *tap) saw(vni uint32) (clear int, indices []string) {
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
	dst, _ := net.ParseMAC(overlay.MACFor(to.addr))
	src, _ := net.ParseMAC(overlay.MACFor(from.addr))
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

// TestNothingInClear: what tasks on an encrypted network send to another node is ESP on the wire,
// or not there at all; a packet in clear, or one through somebody else's association, does not come
// in. A network in clear beside it is in clear.
func TestNothingInClear(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes, stranger := newKeyed(t)
		wire := newTap(t)
		a, b := nodes[0], nodes[1]
		x, y := a.task("10.0.1.10/24"), b.task("10.0.1.11/24")
		u, v := a.clear().task("10.0.2.10/24"), b.clear().task("10.0.2.11/24")
		for _, z := range []task{x, y, u, v} {
			z.ns.Serve(t, "tcp", 80)
		}
		a.knows(y)
		b.knows(x)
		a.clear().knows(v)
		b.clear().knows(u)

		// Without keys nothing leaves the node.
		x.post(y, 81, "too early")
		roottest.Eventually(t, "the packet is dropped", func() bool { return a.counted("sent") > 0 })
		if clear, esp := wire.saw(secretVNI); clear > 0 || len(esp) > 0 {
			t.Errorf("without keys %d packets were sent, encrypted ones by %q", clear, esp)
		}

		a.set(2, 1, 3)
		b.set(2, 1, 3)
		x.reaches(y, 80)
		y.reaches(x, 80)
		x.fills(y, 1424)
		y.fills(x, 1424)
		u.reaches(v, 80)
		v.reaches(u, 80)
		// What the tap has seen of the network in clear came after the others.
		roottest.Eventually(t, "packets in clear", func() bool { clear, _ := wire.saw(openVNI); return clear > 0 })
		clear, esp := wire.saw(secretVNI)
		if clear > 0 || len(esp) != 2 {
			t.Errorf("%d packets were in clear, the others by %q", clear, esp)
		}
		if got := a.associations(); len(got) != 4 {
			t.Errorf("associations: %q", got)
		}

		// From outside, in clear.
		box, side := x.mailbox(81), u.mailbox(81)
		// The kernel does not take v's address from another node.
		v.addr, y.addr = netip.MustParseAddr("10.0.2.99"), netip.MustParseAddr("10.0.1.99")
		stranger.inject(a.node, frame(openVNI, v, u, 81, "in clear"))
		if got := next(t, side); got != "in clear" {
			t.Errorf("came %q", got)
		}
		stranger.inject(a.node, frame(secretVNI, y, x, 81, "forged"))
		roottest.Eventually(t, "the forged packet is dropped", func() bool { return a.counted("received") == 1 })

		// Through an association of another program, such as a VPN's.
		for _, line := range []string{
			"state add src 192.0.2.3 dst 192.0.2.1 proto esp spi 0x1000 reqid 5 mode transport aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 64",
			"policy add src 192.0.2.3 dst 192.0.2.1 proto udp dport 4789 dir out tmpl src 192.0.2.3 dst 192.0.2.1 proto esp reqid 5 mode transport",
		} {
			stranger.run("ip xfrm " + line)
			if strings.HasPrefix(line, "state") {
				a.run("ip xfrm " + line)
			}
		}
		// The kernel does not take v's address from another node.
		v.addr, y.addr = netip.MustParseAddr("10.0.2.99"), netip.MustParseAddr("10.0.1.99")
		stranger.inject(a.node, frame(openVNI, v, u, 81, "by a VPN"))
		if got := next(t, side); got != "by a VPN" {
			t.Errorf("came %q", got)
		}
		stranger.inject(a.node, frame(secretVNI, y, x, 81, "forged too"))
		roottest.Eventually(t, "the packet of another association is dropped", func() bool { return a.failures("XfrmInTmplMismatch") == 1 })

		y.addr = netip.MustParseAddr("10.0.1.11")
		y.post(x, 81, "true")
		if got := next(t, box); got != "true" {
			t.Errorf("came %q", got)
		}

		// Another program loads rules of its own in place of all others.
		a.run("nft flush ruleset")
		roottest.Eventually(t, "our rules are back", func() bool { return strings.Contains(a.run("nft list ruleset"), "chain received") })
		y.post(x, 81, "true again")
		if got := next(t, box); got != "true again" {
			t.Errorf("came %q", got)
		}
		stranger.run("ip xfrm policy flush")
		stranger.inject(a.node, frame(secretVNI, y, x, 81, "forged"))
		roottest.Eventually(t, "the forged packet is dropped", func() bool { return a.counted("received") == 1 })
	})
}

// TestKeysRotate: tasks that ask each other without a pause lose nothing while the nodes' keys
// change, one node after the other, in the order in which a cluster's manager has them changed; and
// nothing of a former key is left.
func TestKeysRotate(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes, _ := newKeyed(t)
		a, b := nodes[0], nodes[1]
		for _, k := range nodes {
			k.set(2, 1, 3)
		}
		x, y := a.task("10.0.1.10/24"), b.task("10.0.1.11/24")
		a.knows(y)
		b.knows(x)
		stop, answers := pinging(t, x, y)
		further(t, answers, 50)
		first := 0
		for n := 2; n < 12 && !t.Failed(); n++ {
			steps := [][]int{{n + 1, n, n + 2}} // all at once, as a session's message brings them
			if n%2 == 0 {
				steps = [][]int{{n, n - 1, n + 1, n + 2}, {n + 1, n - 1, n, n + 2}, {n + 1, n, n + 2}}
			}
			for _, step := range steps {
				for i := range nodes {
					nodes[(i+n)%2].set(step...)
					further(t, answers, 10)
				}
			}
			first = n
		}
		t.Logf("%d answers", stop())
		got := a.associations()
		want := []string{}
		for _, id := range []int{first, first + 1, first + 2} {
			want = append(want, association(b.node, a.node, id))
		}
		want = append(want, association(a.node, b.node, first), association(a.node, b.node, first+1))
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("associations are %q, want %q", got, want)
		}
		if n := a.failures("XfrmInNoStates") + b.failures("XfrmInNoStates") + a.failures("XfrmOutNoStates") + a.failures("XfrmOutPolBlock"); n != 0 {
			t.Errorf("%d packets found no association", n)
		}
	})
}

// association is the line of one as associations has it.
func association(src, dst *node, n int) string {
	h := fnv.New32a()
	a, b := src.addr().As16(), dst.addr().As16()
	_, _ = h.Write(slices.Concat(a[:], binary.BigEndian.AppendUint32(nil, key(n).ID), b[:]))
	return fmt.Sprintf("%s>%s 0x%08x", src.addr(), dst.addr(), h.Sum32())
}

// TestAnotherProcess: the next one takes over what there is without a lost packet, also when the
// keys have changed meanwhile, and removes what nobody uses; what other programs have stays, in
// whatever they resemble us.
func TestAnotherProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes, _ := newKeyed(t)
		a, b := nodes[0], nodes[1]
		// A dockerd's of before to a node that nobody has told of; and those of somebody else.
		const tail = " mode transport aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 64"
		for _, line := range []string{
			"state add src 192.0.2.1 dst 192.0.2.77 proto esp spi 0x1234 reqid 0xd0c4e3" + tail,
			"state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1235 reqid 7" + tail,
			"policy add src 192.0.2.1 dst 192.0.2.77 proto udp dport 4789 dir out mark 0xd0c4e3 tmpl src 192.0.2.1 dst 192.0.2.77 proto esp reqid 0xd0c4e3 mode transport",
		} {
			a.run("ip xfrm " + line)
		}
		theirs := a.run("ip xfrm state") + a.run("ip xfrm policy list dir out")
		for _, k := range nodes {
			k.set(2, 1, 3)
		}
		x, y := a.task("10.0.1.10/24"), b.task("10.0.1.11/24")
		a.knows(y)
		b.knows(x)
		if err := a.net.SetPeer("gone meanwhile", overlay.Peer{Addr: netip.MustParseAddr("10.0.1.50"), MAC: "02:42:0a:00:01:32", Node: netip.MustParseAddr("192.0.2.50")}); err != nil {
			t.Fatal(err)
		}
		before := a.associations()
		if len(before) != 8 {
			t.Errorf("associations: %q", before)
		}
		stop, answers := pinging(t, x, y)
		further(t, answers, 50)
		for i := range 5 {
			a.start()
			further(t, answers, 10)
			if got := a.associations(); !slices.Equal(got, before) {
				t.Errorf("associations were %q and are %q", before, got)
			}
			if i == 3 {
				// Rotated while the agent was dead.
				b.set(3, 2, 4)
				a.set(3, 2, 4)
				before = a.associations()
			} else if i < 3 {
				a.set(2, 1, 3)
			}
			further(t, answers, 10)
		}
		a.set(3, 2, 4)
		a.knows(y)
		if err := errors.Join(a.net.Prune(), a.keys.Prune()); err != nil {
			t.Fatal(err)
		}
		further(t, answers, 10)
		got := a.associations()
		if len(got) != 5 || strings.Contains(strings.Join(got, " "), "192.0.2.50") {
			t.Errorf("associations: %q", got)
		}
		t.Logf("%d answers", stop())

		// Another key of the same number: that of another cluster.
		other := keys(3, 2, 4)
		for i := range other {
			other[i].Key[0]++
		}
		for _, k := range nodes {
			if err := k.keys.SetKeys(other); err != nil {
				t.Fatal(err)
			}
		}
		y.ns.Serve(t, "tcp", 80)
		x.reaches(y, 80)

		// A node that has nothing here any more, and then the network.
		if err := a.net.DropPeer(y.addr.String()); err != nil {
			t.Fatal(err)
		}
		if got := a.associations(); len(got) != 0 {
			t.Errorf("associations with a node that is gone: %q", got)
		}
		if err := errors.Join(a.keys.Remove(a.dir, "app"), a.keys.Remove(a.dir, "app")); err != nil {
			t.Fatal(err)
		}
		if got := a.run("ip xfrm state") + a.run("ip xfrm policy"); got != theirs {
			t.Errorf("left\n%s\nwant\n%s", got, theirs)
		}
		if out := a.run("nft list tables"); strings.Contains(out, "sealed") {
			t.Errorf("left: %s", out)
		}

		// A network that is removed by its name only leaves nothing once all is known.
		a.start()
		a.set(1)
		a.knows(y)
		if err := overlay.Remove(a.dir, "app"); err != nil {
			t.Fatal(err)
		}
		a.ns.Do(t, func() error {
			k, err := overlay.NewKeyring(nil)
			if err != nil {
				return err
			}
			return errors.Join(k.Prune(), k.Prune(), k.Close())
		})
		if got := a.run("ip xfrm state") + a.run("ip xfrm policy") + a.run("nft list tables"); got != theirs {
			t.Errorf("left\n%s\nwant\n%s", got, theirs)
		}
	})
}

// TestManyNodes: those of a large cluster cost little.
func TestManyNodes(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes, _ := newKeyed(t)
		a := nodes[0]
		a.set(2, 1, 3)
		list := map[string]overlay.Peer{}
		for i := range 1000 {
			addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + i%200)})
			list[strconv.Itoa(i)] = overlay.Peer{Addr: addr, MAC: overlay.MACFor(addr), Node: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i%200)})}
		}
		began := time.Now()
		if err := a.net.SetPeers(list); err != nil {
			t.Fatal(err)
		}
		set := time.Now()
		if got := a.associations(); len(got) != 800 {
			t.Errorf("%d associations", len(got))
		}
		read := time.Now()
		a.set(3, 2, 4)
		rotated := time.Now()
		if got := a.associations(); len(got) != 1000 {
			t.Errorf("%d associations", len(got))
		}
		dropping := time.Now()
		for key := range list {
			if err := a.net.DropPeer(key); err != nil {
				t.Fatal(err)
			}
		}
		if got := a.associations(); len(got) != 0 {
			t.Errorf("left %q", got)
		}
		t.Logf("200 nodes: told in %s, rotated in %s, forgotten in %s", set.Sub(began), rotated.Sub(read), time.Since(dropping))
	})
}

// TestEncryptedOverIPv6: nodes may have addresses of IPv6.
func TestEncryptedOverIPv6(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var nodes []*keyed
		for _, n := range newNodes(t, 2) {
			n.run(fmt.Sprintf("ip addr add 2001:db8::%d/64 dev eth0 nodad", n.n))
			k := &keyed{node: n}
			n.ns.Do(t, func() (err error) {
				k.keys, err = overlay.NewKeyring(nil)
				return err
			})
			def := n.def()
			def.Local, def.Encrypted, def.Keys, def.MTU = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n.n)), true, k.keys, 1400
			var err error
			if n.net, err = n.try(def); errdefs.IsFailedPrecondition(err) {
				t.Skipf("%v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := errors.Join(k.keys.Remove(n.dir, "app"), k.keys.Close()); err != nil {
					t.Error(err)
				}
			})
			k.set(2, 1, 3)
			nodes = append(nodes, k)
		}
		wire := newTap(t)
		x, y := nodes[0].task("10.0.1.10/24"), nodes[1].task("10.0.1.11/24")
		for _, z := range []task{x, y} {
			z.ns.Serve(t, "tcp", 80)
			p := z.peer()
			p.Node = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", z.on.n))
			if err := nodes[2-z.on.n].net.SetPeer("other", p); err != nil {
				t.Fatal(err)
			}
		}
		x.reaches(y, 80)
		y.reaches(x, 80)
		roottest.Eventually(t, "encrypted packets", func() bool { _, esp := wire.saw(secretVNI); return len(esp) == 2 })
		if clear, _ := wire.saw(secretVNI); clear > 0 {
			t.Errorf("%d packets were in clear", clear)
		}
	})
}

// TestAKernelWithoutESP: such a machine says so, and nothing is made.
func TestAKernelWithoutESP(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNodes(t, 1)[0]
		var able error
		def := n.def()
		def.Encrypted = true
		n.ns.Do(t, func() (err error) {
			def.Keys, err = overlay.NewKeyring(nil)
			able = def.Keys.Able()
			return err
		})
		defer func() { _ = def.Keys.Close() }()
		if able == nil {
			t.Skip("this kernel has ESP")
		}
		if !errdefs.IsFailedPrecondition(able) || !strings.Contains(able.Error(), "ESP") {
			t.Errorf("error: %v", able)
		}
		if _, err := n.try(def); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("opened: %v", err)
		}
		if list, err := overlay.List(n.dir); err != nil || len(list) != 0 {
			t.Errorf("left %q, %v", list, err)
		}
		if out := n.run("nft list tables"); out != "" {
			t.Errorf("left %s", out)
		}
		if err := def.Keys.Prune(); err != nil {
			t.Error(err)
		}
	})
}
