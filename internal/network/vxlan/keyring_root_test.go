package vxlan_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/nlwrap"
	"github.com/longshore/longshore/internal/roottest"
)

// TestNothingInClear: packets of tasks on an encrypted network to another node are ESP on the wire,
// or do not appear; a packet in clear, or one through somebody else's association, does not come
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
		if plain, esp := wire.saw(secretVNI); plain > 0 || len(esp) > 0 {
			t.Errorf("without keys %d packets were sent, encrypted ones by %q", plain, esp)
		}

		a.set(2, 1, 3)
		b.set(2, 1, 3)
		x.reaches(y, 80)
		y.reaches(x, 80)
		x.fills(y, 1424)
		y.fills(x, 1424)
		u.reaches(v, 80)
		v.reaches(u, 80)
		// The packets that the tap saw in clear came after the others.
		roottest.Eventually(t, "packets in clear", func() bool { plain, _ := wire.saw(openVNI); return plain > 0 })
		plain, esp := wire.saw(secretVNI)
		if plain > 0 || len(esp) != 2 {
			t.Errorf("%d packets were in clear, the others by %q", plain, esp)
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

		// It removes all associations and policies, as a dockerd does that joins a Swarm.
		a.run("ip xfrm state flush")
		a.run("ip xfrm policy flush")
		was := a.counted("sent")
		before, _ := wire.saw(secretVNI) // the stranger's
		y.addr = netip.MustParseAddr("10.0.1.11")
		x.post(y, 81, "without a policy")
		roottest.Eventually(t, "the packet is dropped", func() bool { return a.counted("sent") > was })
		if err := a.keys.Renew(); err != nil {
			t.Fatal(err)
		}
		x.reaches(y, 80)
		if got := a.run("ip xfrm policy"); strings.Count(got, "dir in ") != 1 || strings.Count(got, "dir out ") != 1 {
			t.Errorf("policies are %s", got)
		}
		if plain, _ := wire.saw(secretVNI); plain != before {
			t.Errorf("%d packets were in clear", plain-before)
		}
	})
}

// TestKeysRotate: tasks that ask each other without a pause lose nothing while the nodes' keys
// change, one node after the other, in the order of a cluster's manager; and nothing of a former
// key is left.
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

// TestManyPackets: an association near the end of its count is replaced, and sends on.
func TestManyPackets(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes, _ := newKeyed(t)
		a, b := nodes[0], nodes[1]
		for _, k := range nodes {
			k.set(2, 1, 3)
		}
		x, y := a.task("10.0.1.10/24"), b.task("10.0.1.11/24")
		a.knows(y)
		b.knows(x)
		box := y.mailbox(81)
		x.post(y, 81, "first")
		if got := next(t, box); got != "first" {
			t.Errorf("came %q", got)
		}
		a.ns.Do(t, func() error {
			h, err := netlink.NewHandle(unix.NETLINK_XFRM)
			if err != nil {
				return err
			}
			defer h.Close()
			list, err := nlwrap.Handle{Handle: h}.XfrmStateList(netlink.FAMILY_V4)
			for _, s := range list {
				if s.Src.Equal(a.addr().AsSlice()) {
					s.Replay = &netlink.XfrmReplayState{OSeq: 1<<32 - 2}
					err = errors.Join(err, h.XfrmStateDel(&s), h.XfrmStateAdd(&s))
				}
			}
			return err
		})
		before := a.associations()
		x.post(y, 81, "the last one")
		if got := next(t, box); got != "the last one" {
			t.Errorf("came %q", got)
		}
		x.post(y, 81, "lost")
		roottest.Eventually(t, "the counter is at its end", func() bool { return a.failures("XfrmOutStateSeqError") == 1 })
		if err := errors.Join(a.keys.Renew(), a.keys.Renew()); err != nil {
			t.Fatal(err)
		}
		if got := a.associations(); !slices.Equal(got, before) {
			t.Errorf("associations were %q and are %q", before, got)
		}
		x.post(y, 81, "second")
		if got := next(t, box); got != "second" {
			t.Errorf("came %q", got)
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

// TestAnotherProcess: the next one takes over everything without a lost packet, also when the keys
// have changed meanwhile, and removes unused objects; those of other programs stay, however they
// resemble ours.
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
		if err := a.net.SetPeer("gone meanwhile", vxlan.Peer{Addr: netip.MustParseAddr("10.0.1.50"), MAC: "02:42:0a:00:01:32", Node: netip.MustParseAddr("192.0.2.50")}); err != nil {
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

		// A network removed by its name only leaves nothing after the next process prunes.
		a.start()
		a.set(1)
		a.knows(y)
		if err := vxlan.Remove(a.dir, "app"); err != nil {
			t.Fatal(err)
		}
		if err := a.keys.Close(); err != nil {
			t.Fatal(err)
		}
		a.ns.Do(t, func() (err error) {
			if a.keys, err = vxlan.NewKeyring(nil); err != nil {
				return err
			}
			return errors.Join(a.keys.Prune(), a.keys.Prune())
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
		list := map[string]vxlan.Peer{}
		for i := range 1000 {
			addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + i%200)})
			list[strconv.Itoa(i)] = vxlan.Peer{Addr: addr, MAC: vxlan.MACFor(addr), Node: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i%200)})}
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
				k.keys, err = vxlan.NewKeyring(nil)
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
		if plain, _ := wire.saw(secretVNI); plain > 0 {
			t.Errorf("%d packets were in clear", plain)
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
			def.Keys, err = vxlan.NewKeyring(nil)
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
		if list, err := vxlan.List(n.dir); err != nil || len(list) != 0 {
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
