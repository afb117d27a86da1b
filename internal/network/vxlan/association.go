package vxlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/nlwrap"
)

// label is the mark and the request id that the packets, associations and policies of encrypted
// networks have, on all nodes' kernels alike.
const label = 0xD0C4E3

// policyPriority comes before that of any policy that other programs make for the same addresses:
// those begin in the thousands. Together with label it says that a policy is ours.
const policyPriority = 1

// The cipher of associations: AES-GCM with 8 bytes to prove that a packet is whole, its 4 bytes of
// salt behind the key.
const (
	cipher  = "rfc4106(gcm(aes))"
	icvBits = 64
)

// saID names a security association: packets of one direction between two nodes, by one key.
type saID struct {
	src, dst netip.Addr
	spi      uint32
}

type sa struct {
	saID
	key [16]byte
}

// newSA returns the association for packets from a node to another. All nodes derive the same.
func newSA(src, dst netip.Addr, k Key) sa {
	return sa{saID{src, dst, spi(src, dst, k.ID)}, k.Key}
}

// spi returns the index in packets that tells the other node the key. Nodes need no negotiation,
// because each can compute the other's.
func spi(src, dst netip.Addr, id uint32) uint32 {
	h := fnv.New32a()
	from, to := src.As16(), dst.As16()
	_, _ = h.Write(from[:])
	_, _ = h.Write(binary.BigEndian.AppendUint32(nil, id))
	_, _ = h.Write(to[:])
	return h.Sum32()
}

// id returns the fields that identify an association in the kernel.
func (s saID) id() *netlink.XfrmState {
	return &netlink.XfrmState{Src: s.src.AsSlice(), Dst: s.dst.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TRANSPORT, Spi: int(s.spi)}
}

// state returns the association for the kernel. There is no replay window, because a node counts
// from the start again after a restart, with the same key. Other than dockerd's, which have no
// selector, ours carry UDP only.
func (s sa) state() *netlink.XfrmState {
	x := s.id()
	x.Reqid = label
	x.Selector = &netlink.XfrmPolicy{Src: host(s.src), Dst: host(s.dst), Proto: unix.IPPROTO_UDP}
	x.Aead = &netlink.XfrmStateAlgo{Name: cipher, Key: binary.BigEndian.AppendUint32(s.key[:], s.spi), ICVLen: icvBits}
	return x
}

func host(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

// policyOut makes marked packets to a node's port use one association, or be dropped.
func policyOut(p pair, by uint32) *netlink.XfrmPolicy {
	return &netlink.XfrmPolicy{
		Src: host(p.local), Dst: host(p.remote), Proto: unix.IPPROTO_UDP, DstPort: int(p.port), Dir: netlink.XFRM_DIR_OUT,
		Priority: policyPriority, Mark: ourMark(),
		Tmpls: []netlink.XfrmPolicyTmpl{{
			Src: p.local.AsSlice(), Dst: p.remote.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TRANSPORT, Spi: int(by), Reqid: label,
		}},
	}
}

// policyIn has marked packets taken that came through one of our associations: those that came
// through others, such as a VPN's, are none of the cluster's.
func policyIn(at entry) *netlink.XfrmPolicy {
	all := netip.IPv6Unspecified()
	if at.family {
		all = netip.IPv4Unspecified()
	}
	every := ipNet(netip.PrefixFrom(all, 0))
	return &netlink.XfrmPolicy{
		Src: every, Dst: every, Proto: unix.IPPROTO_UDP, DstPort: int(at.port), Dir: netlink.XFRM_DIR_IN,
		Priority: policyPriority, Mark: ourMark(),
		Tmpls: []netlink.XfrmPolicyTmpl{{
			Src: all.AsSlice(), Dst: all.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TRANSPORT, Reqid: label,
		}},
	}
}

func ourMark() *netlink.XfrmMark { return &netlink.XfrmMark{Value: label, Mask: 0xffffffff} }

// add adds an association. It replaces one of encrypted networks with another key.
func add(h nlwrap.Handle, s sa) error {
	err := h.XfrmStateAdd(s.state())
	if !errors.Is(err, unix.EEXIST) {
		return failed("make", s.saID, err)
	}
	there, err := h.XfrmStateGet(s.id())
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return failed("read", s.saID, err)
	}
	if err == nil {
		if there.Reqid != label || there.Mode != netlink.XFRM_MODE_TRANSPORT || addrOf(there.Src) != s.src {
			return failed("make", s.saID, fmt.Errorf("another node or program has its index: %w", errdefs.ErrAlreadyExists))
		}
		if key, ok := keyOf(there); ok && (key == s.key || key == hidden) && isOurs(*there) {
			return nil
		}
		if err := ignoreMissing(h.XfrmStateDel(s.id())); err != nil {
			return failed("replace", s.saID, err)
		}
	}
	return failed("make", s.saID, h.XfrmStateAdd(s.state()))
}

func failed(verb string, s saID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s association from %s to %s with index %#x: %w", verb, s.src, s.dst, s.spi, err)
}

// hidden is the value of a key as a kernel in lockdown reports it.
var hidden [16]byte

// keyOf returns the key of an association, if it has one of our cipher.
func keyOf(x *netlink.XfrmState) (key [16]byte, ok bool) {
	if x.Aead == nil || x.Aead.Name != cipher || x.Aead.ICVLen != icvBits || len(x.Aead.Key) != len(key)+4 {
		return key, false
	}
	return [16]byte(x.Aead.Key), true
}

// isOurs reports whether an association is one that a Keyring has made.
func isOurs(x netlink.XfrmState) bool {
	return x.Proto == netlink.XFRM_PROTO_ESP && x.Mode == netlink.XFRM_MODE_TRANSPORT && x.Reqid == label &&
		x.Selector != nil && x.Selector.Proto == unix.IPPROTO_UDP && whole(x.Selector.Src) && whole(x.Selector.Dst)
}

// whole reports whether a range is of one address.
func whole(n *net.IPNet) bool {
	if n == nil {
		return false
	}
	ones, bits := n.Mask.Size()
	return ones == bits && ones > 0
}

// installed is the kernel's state of all Keyrings.
type installed struct {
	states map[saID]installedSA
	out    map[pair]uint32
	in     map[entry]bool
}

type installedSA struct {
	key  [16]byte
	sent uint32 // packets, as far as the association counts
}

// renewAt is how many packets an association sends before it is replaced. Its counter ends at twice
// as many; it sends nothing then.
const renewAt = 1 << 31

func read(h nlwrap.Handle) (installed, error) {
	have := installed{map[saID]installedSA{}, map[pair]uint32{}, map[entry]bool{}}
	for _, f := range []family{true, false} {
		number := netlink.FAMILY_V6
		if f {
			number = netlink.FAMILY_V4
		}
		states, err := h.XfrmStateList(number)
		if err != nil {
			return have, fmt.Errorf("list associations: %w", err)
		}
		for _, x := range states {
			if key, ok := keyOf(&x); ok && isOurs(x) {
				s := installedSA{key: key}
				if x.Replay != nil {
					s.sent = x.Replay.OSeq
				}
				have.states[saID{addrOf(x.Src), addrOf(x.Dst), uint32(x.Spi)}] = s
			}
		}
		policies, err := h.XfrmPolicyList(number)
		if err != nil {
			return have, fmt.Errorf("list policies: %w", err)
		}
		for _, p := range policies {
			if p.Mark == nil || *p.Mark != *ourMark() || p.Priority != policyPriority || len(p.Tmpls) != 1 || p.Tmpls[0].Reqid != label {
				continue
			}
			switch p.Dir {
			case netlink.XFRM_DIR_OUT:
				have.out[pair{addrOf(p.Src.IP), addrOf(p.Dst.IP), uint16(p.DstPort)}] = uint32(p.Tmpls[0].Spi)
			case netlink.XFRM_DIR_IN:
				have.in[entry{f, uint16(p.DstPort)}] = true
			}
		}
	}
	return have, nil
}

// ensure adds an association if it is missing or has another key.
func (i installed) ensure(h nlwrap.Handle, s sa) error {
	if have, there := i.states[s.saID]; there && (have.key == s.key || have.key == hidden) {
		return nil
	}
	return add(h, s)
}

// renew replaces an association that has sent much. Packets in between are lost. No nonce repeats
// under the key, because the kernel starts each association's counter at a random value.
func (i installed) renew(h nlwrap.Handle, s sa) error {
	if i.states[s.saID].sent < renewAt {
		return nil
	}
	if err := ignoreMissing(h.XfrmStateDel(s.id())); err != nil {
		return failed("renew", s.saID, err)
	}
	return add(h, s)
}

// Able says why there can be no encrypted networks on this machine. FailedPrecondition.
func (k *Keyring) Able() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tryLocked(true)
}

// tryLocked makes all that encryption needs, in a network namespace of its own that ends with the
// attempt. A kernel that could do it once can do it for good.
func (k *Keyring) tryLocked(f family) error {
	if k.able[f] {
		return nil
	}
	a, b := netip.IPv6Loopback(), netip.IPv6Loopback().Next()
	if f {
		a, b = netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.AddrFrom4([4]byte{127, 0, 0, 2})
	}
	err := kernel.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		return try(a, b)
	})
	if err != nil {
		return fmt.Errorf("this machine cannot encrypt: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	k.able[f] = true
	return nil
}

// try adds the associations and policies of two nodes in the calling thread's namespace.
func try(a, b netip.Addr) error {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	xfrm, err := netlink.NewHandle(unix.NETLINK_XFRM)
	if err != nil {
		return fmt.Errorf("the kernel has no IPsec: %w", err)
	}
	defer xfrm.Close()
	for _, s := range []sa{newSA(a, b, Key{}), newSA(b, a, Key{})} {
		if err := xfrm.XfrmStateAdd(s.state()); err != nil {
			return fmt.Errorf("the kernel has no ESP with AES-GCM (modules esp4 or esp6, gcm, seqiv): %w", err)
		}
	}
	for _, p := range []*netlink.XfrmPolicy{policyOut(pair{a, b, DefaultPort}, spi(a, b, 0)), policyIn(entry{family(a.Is4()), DefaultPort})} {
		if err := xfrm.XfrmPolicyUpdate(p); err != nil {
			return fmt.Errorf("the kernel has no policies of IPsec: %w", err)
		}
	}
	if err := nft.Seal(ns, label, []nft.Sealed{{Port: DefaultPort, VNI: 1}}); err != nil {
		return fmt.Errorf("the kernel's nftables cannot tell packets of IPsec: %w", err)
	}
	return nil
}
