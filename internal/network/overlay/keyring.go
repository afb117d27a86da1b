package overlay

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Key encrypts what nodes send to each other. All nodes of a cluster have the same.
type Key struct {
	Key [16]byte
	ID  uint32 // differs between the keys of a cluster
}

// Format keeps the key out of logs and errors.
func (k Key) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "key %d", k.ID) }

// MarshalText does so in documents.
func (k Key) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%v", k), nil }

// maxKeys is the most that a Keyring has: each costs an association per node.
const maxKeys = 8

// Keyring encrypts what this node exchanges with others on encrypted networks, all of which share
// it: the kernel's security associations are between two nodes. It is safe for concurrent use.
//
// Its keys are here and in the kernel only. What is in the kernel stays when this process ends, and
// goes on with the keys of then. The next process changes it when it gets keys that differ, and
// removes the rest at Prune.
type Keyring struct {
	ns  *os.File // from which packets are sent
	log *slog.Logger

	mu       sync.Mutex // guards xfrm, able, keys, users, sealed, recalled, left
	xfrm     *netlink.Handle
	able     map[family]bool // has been tried
	keys     []Key           // the one to send by first
	users    map[pair]int
	sealed   map[nft.Sealed]family
	recalled bool
	left     []nft.Sealed // of an earlier process
}

// pair is a node with which this one exchanges packets, and how.
type pair struct {
	local, remote netip.Addr
	port          uint16
}

// family is that of nodes' addresses: true for IPv4.
type family bool

// entry is where packets come in.
type entry struct {
	family family
	port   uint16
}

// NewKeyring returns a Keyring without keys, for the calling thread's network namespace.
func NewKeyring(log *slog.Logger) (*Keyring, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	if log == nil {
		log = slog.Default()
	}
	return &Keyring{ns: ns, log: log, able: map[family]bool{}, users: map[pair]int{}, sealed: map[nft.Sealed]family{}}, nil
}

// Close closes its sockets. What it has set in the kernel stays.
func (k *Keyring) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangUpLocked()
	return k.ns.Close()
}

func (k *Keyring) hangUpLocked() {
	if k.xfrm != nil {
		k.xfrm.Close()
		k.xfrm = nil
	}
}

func (k *Keyring) dialLocked() (nlwrap.Handle, error) {
	if k.xfrm == nil {
		h, err := netlink.NewHandleAt(netns.NsHandle(k.ns.Fd()), unix.NETLINK_XFRM)
		if err != nil {
			return nlwrap.Handle{}, fmt.Errorf("open netlink for ipsec: %w", err)
		}
		k.xfrm = h
	}
	return nlwrap.Handle{Handle: k.xfrm}, nil
}

// SetKeys sets the keys, the one to send by first. What other nodes send by any of them is
// understood before the first packet is sent by a new one, and until a key is not among them any
// more. InvalidArgument for keys that cannot be: the former ones stay then.
func (k *Keyring) SetKeys(keys []Key) error {
	if len(keys) == 0 || len(keys) > maxKeys {
		return fmt.Errorf("set keys of encrypted networks: there are %d: %w", len(keys), errdefs.ErrInvalidArgument)
	}
	for i, a := range keys {
		if slices.ContainsFunc(keys[:i], func(b Key) bool { return a.ID == b.ID }) {
			return fmt.Errorf("set keys of encrypted networks: %v is there twice: %w", a, errdefs.ErrInvalidArgument)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = slices.Clone(keys)
	if err := k.syncLocked(false); err != nil {
		return fmt.Errorf("set keys of encrypted networks: %w", err)
	}
	return nil
}

// Prune removes what an earlier process has set and nobody uses now: when all encrypted networks of
// this node are open, and know their peers.
func (k *Keyring) Prune() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recallLocked(); err != nil {
		return err
	}
	var errs []error
	if len(k.left) > 0 {
		k.left = nil
		errs = append(errs, k.sealLocked())
	}
	return errors.Join(append(errs, k.syncLocked(true))...)
}

// enter protects a network's packets, before the first one is sent: from then on none is sent or
// taken in clear. FailedPrecondition as Able.
func (k *Keyring) enter(def Definition) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := family(def.Local.Is4())
	if err := k.tryLocked(f); err != nil {
		return err
	}
	if err := k.recallLocked(); err != nil {
		return err
	}
	for _, s := range def.sealed() {
		k.sealed[s] = f
	}
	if err := k.sealLocked(); err != nil {
		return err
	}
	return k.admitLocked(entry{f, def.Port})
}

// leave is for a network that is not there any more, or is in clear.
func (k *Keyring) leave(def Definition) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recallLocked(); err != nil {
		return err
	}
	known := false
	for _, s := range def.sealed() {
		_, ours := k.sealed[s]
		known = known || ours || slices.Contains(k.left, s)
		delete(k.sealed, s)
		k.left = slices.DeleteFunc(k.left, func(l nft.Sealed) bool { return l == s })
	}
	if !known {
		return nil
	}
	err := k.sealLocked()
	at := entry{family(def.Local.Is4()), def.Port}
	if k.entersLocked(at) {
		return err
	}
	h, failed := k.dialLocked()
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, gone(h.XfrmPolicyDel(policyIn(at))))
}

// recallLocked reads what an earlier process has protected: its networks stay so.
func (k *Keyring) recallLocked() error {
	if k.recalled {
		return nil
	}
	list, err := nft.SealedNetworks(k.ns)
	if err != nil {
		return err
	}
	k.left, k.recalled = list, true
	return nil
}

// sealLocked has the kernel drop packets in clear of those networks that are protected.
func (k *Keyring) sealLocked() error {
	list := slices.Clone(k.left)
	for s := range k.sealed {
		if !slices.Contains(k.left, s) {
			list = append(list, s)
		}
	}
	return nft.Seal(k.ns, label, list)
}

// sealed are the networks that a definition's packets are of.
func (d Definition) sealed() (list []nft.Sealed) {
	for _, s := range d.Subnets {
		list = append(list, nft.Sealed{Port: d.Port, VNI: s.VNI})
	}
	return list
}

// hold has packets to and from a node encrypted, until release has been called as often.
func (k *Keyring) hold(p pair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.users[p]++
	if k.users[p] > 1 || len(k.keys) == 0 {
		return nil
	}
	h, err := k.dialLocked()
	if err == nil {
		err = k.connect(h, p)
	}
	if err != nil {
		return fmt.Errorf("encrypt packets to %s: %w", p.remote, err)
	}
	return nil
}

// release takes back a hold.
func (k *Keyring) release(p pair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users[p]--; k.users[p] > 0 {
		return nil
	}
	delete(k.users, p)
	h, err := k.dialLocked()
	if err != nil {
		return err
	}
	errs := []error{gone(h.XfrmPolicyDel(policyOut(p, 0)))}
	if !k.talksLocked(p.local, p.remote) {
		for _, key := range k.keys {
			errs = append(errs, gone(h.XfrmStateDel(newSA(p.remote, p.local, key).id())), gone(h.XfrmStateDel(newSA(p.local, p.remote, key).id())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove encryption of packets to %s: %w", p.remote, err)
	}
	return nil
}

// talksLocked reports whether there are packets between two nodes at any port.
func (k *Keyring) talksLocked(local, remote netip.Addr) bool {
	for p := range k.users {
		if p.local == local && p.remote == remote {
			return true
		}
	}
	return false
}

// connect makes all that a pair needs. Preconditions: mu is held.
func (k *Keyring) connect(h nlwrap.Handle, p pair) error {
	var errs []error
	for _, key := range k.keys {
		errs = append(errs, add(h, newSA(p.remote, p.local, key)))
	}
	send := newSA(p.local, p.remote, k.keys[0])
	if err := add(h, send); err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, h.XfrmPolicyUpdate(policyOut(p, send.spi)))...)
}

// syncLocked makes what the kernel has what it should have. What is of nodes that nobody uses stays
// unless prune is set: an earlier process has used them.
//
// Nothing is lost meanwhile: associations to receive by come first, then those to send by, then
// the policies that say which one to send by. A node's former ones to send by stay as long as
// their key: a packet may be under way to one.
func (k *Keyring) syncLocked(prune bool) error {
	h, err := k.dialLocked()
	if errors.Is(err, unix.EPROTONOSUPPORT) && len(k.users) == 0 {
		return nil // this kernel has no IPsec, and nothing of it is used
	}
	if err != nil {
		return err
	}
	have, err := read(h)
	if err != nil {
		return err
	}
	var errs []error
	keep := map[saID]bool{}
	if len(k.keys) > 0 {
		for p := range k.users {
			for _, key := range k.keys {
				in := newSA(p.remote, p.local, key)
				keep[in.saID], keep[newSA(p.local, p.remote, key).saID] = true, true
				errs = append(errs, have.ensure(h, in))
			}
		}
		for p := range k.users {
			out := newSA(p.local, p.remote, k.keys[0])
			if err := have.ensure(h, out); err != nil {
				errs = append(errs, err)
			} else if have.out[p] != out.spi {
				errs = append(errs, h.XfrmPolicyUpdate(policyOut(p, out.spi)))
			}
		}
	}
	for p := range have.out {
		if prune && k.users[p] == 0 {
			errs = append(errs, gone(h.XfrmPolicyDel(policyOut(p, 0))))
		}
	}
	for s := range have.states {
		used := k.talksLocked(s.src, s.dst) || k.talksLocked(s.dst, s.src)
		if !keep[s] && (used && len(k.keys) > 0 || prune && !used) {
			errs = append(errs, gone(h.XfrmStateDel(s.id())))
		}
	}
	for at := range have.in {
		if prune && !k.entersLocked(at) {
			errs = append(errs, gone(h.XfrmPolicyDel(policyIn(at))))
		}
	}
	return errors.Join(errs...)
}

// entersLocked reports whether protected networks receive there.
func (k *Keyring) entersLocked(at entry) bool {
	for s, f := range k.sealed {
		if at == (entry{f, s.Port}) {
			return true
		}
	}
	return false
}

// admitLocked has the kernel take protected networks' packets from our associations only.
func (k *Keyring) admitLocked(at entry) error {
	h, err := k.dialLocked()
	if err != nil {
		return err
	}
	if err := h.XfrmPolicyUpdate(policyIn(at)); err != nil {
		return fmt.Errorf("set policy for packets that come to port %d: %w", at.port, err)
	}
	return nil
}
