package vxlan

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Key encrypts packets between nodes. All nodes of a cluster have the same.
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

// Keyring encrypts the packets of all encrypted networks between this node and others. They share
// it, because the kernel's security associations are between two nodes. It is safe for concurrent
// use.
//
// Its keys are in this process and in the kernel only. The kernel's part outlives this process and
// keeps the last keys. The next process changes it when it gets other keys, and removes unused parts
// at Prune.
type Keyring struct {
	ns  *os.File // sends the packets
	log *slog.Logger

	stop     chan struct{} // closed by Close
	watching sync.WaitGroup

	mu       sync.Mutex // guards xfrm, watch, able, keys, networks, recalled, left
	xfrm     *netlink.Handle
	watch    *nft.SealWatch
	able     map[family]bool   // has been tried
	keys     []Key             // the one to send by first
	networks map[string][]*use // by their paths; several while one is opened again
	recalled bool
	left     []nft.Sealed // of an earlier process
}

// pair is two nodes that exchange packets, this one and another, and the UDP port.
type pair struct {
	local, remote netip.Addr
	port          uint16
}

// use has the associations of an encrypted network.
type use struct {
	def   Definition
	nodes map[pair]int // how many of its entries lead there
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
	return &Keyring{ns: ns, log: log, stop: make(chan struct{}), able: map[family]bool{}, networks: map[string][]*use{}}, nil
}

// Close closes its sockets, and is its last call. The kernel's part stays.
func (k *Keyring) Close() error {
	k.mu.Lock()
	close(k.stop)
	var errs []error
	if k.watch != nil {
		errs = append(errs, k.watch.Close())
	}
	k.mu.Unlock()
	k.watching.Wait() // it needs mu
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.xfrm != nil {
		k.xfrm.Close()
	}
	return errors.Join(append(errs, k.ns.Close())...)
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

// SetKeys sets the keys, the one to send by first. All of them are accepted for received packets
// before the first packet is sent with a new one, and each until it is no longer in the list.
// InvalidArgument if a key is not valid: the former ones stay then.
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

// Prune removes the unused state of an earlier process. Call it when all encrypted networks of this
// node are open and know their peers.
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
func (k *Keyring) enter(path string, def Definition) (*use, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.tryLocked(family(def.Local.Is4())); err != nil {
		return nil, err
	}
	if err := k.recallLocked(); err != nil {
		return nil, err
	}
	u := &use{def, map[pair]int{}}
	k.networks[path] = append(k.networks[path], u)
	if err := k.sealLocked(); err != nil {
		return nil, err
	}
	if err := k.watchLocked(); err != nil {
		return nil, err
	}
	return u, k.admitLocked(def.entry())
}

// settle replaces the encryption state of the network at a path by u, which is nil for an unencrypted
// network.
func (k *Keyring) settle(path string, u *use, def Definition) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recallLocked(); err != nil {
		return err
	}
	former := k.networks[path]
	delete(k.networks, path)
	known := len(former) > 0
	if u != nil {
		k.networks[path] = []*use{u}
		known = len(former) > 1
	}
	k.left = slices.DeleteFunc(k.left, func(l nft.Sealed) bool {
		gone := slices.Contains(def.sealed(), l)
		known = known || gone && u == nil
		return gone
	})
	if !known {
		return nil
	}
	errs := []error{k.sealLocked()}
	for _, f := range former {
		if f != u {
			errs = append(errs, k.endLocked(f))
		}
	}
	return errors.Join(errs...)
}

// endLocked removes the state of a removed network that no other network uses.
func (k *Keyring) endLocked(f *use) error {
	h, err := k.dialLocked()
	if err != nil {
		return err
	}
	var errs []error
	for p := range f.nodes {
		errs = append(errs, k.disconnect(h, p))
	}
	if at := f.def.entry(); !k.entersLocked(at) {
		errs = append(errs, ignoreMissing(h.XfrmPolicyDel(policyIn(at))))
	}
	return errors.Join(errs...)
}

// Remove is the function Remove for networks that may be encrypted.
func (k *Keyring) Remove(dir, name string) error {
	// Nothing may be sent by the time that packets in clear are let through.
	if err := Remove(dir, name); err != nil {
		return err
	}
	if err := k.settle(pathOf(dir, name), nil, Definition{}); err != nil {
		return fmt.Errorf("remove encryption of network %s: %w", name, err)
	}
	return nil
}

// recallLocked reads which networks an earlier process has protected: they stay protected.
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
func (k *Keyring) sealLocked() error { return nft.Seal(k.ns, label, k.protectedLocked()) }

func (k *Keyring) protectedLocked() []nft.Sealed {
	list := slices.Clone(k.left)
	for _, uses := range k.networks {
		for _, u := range uses {
			for _, s := range u.def.sealed() {
				if !slices.Contains(list, s) {
					list = append(list, s)
				}
			}
		}
	}
	return list
}

// watchLocked begins to restore the rules when another program removes them, as one does that
// loads a rule set of its own in place of all. Until then packets would be sent in clear.
func (k *Keyring) watchLocked() error {
	if k.watch != nil {
		return nil
	}
	w, err := nft.WatchSealed(k.ns)
	if err != nil {
		return err
	}
	k.watch = w
	k.watching.Go(func() {
		for {
			err := w.Next()
			select {
			case <-k.stop:
				return
			default:
			}
			if err != nil {
				k.log.Error("cannot watch nftables any more: rules of encrypted networks that another program removes are not restored until the agent restarts", "error", err.Error())
				return
			}
			k.mu.Lock()
			k.restoreLocked()
			k.mu.Unlock()
		}
	})
	k.watching.Go(func() {
		tick := time.NewTicker(renewInterval)
		defer tick.Stop()
		for {
			select {
			case <-k.stop:
				return
			case <-tick.C:
			}
			if err := k.renew(); err != nil {
				k.log.Warn("could not renew associations of encrypted networks; will try again", "in", renewInterval, "error", err.Error())
			}
		}
	})
	return nil
}

// renewInterval is how often the counters of associations are read. In that time the fastest node
// sends less than half of the packets that a counter can count.
const renewInterval = time.Minute

// renew replaces associations that have sent much, and restores those that another program has
// removed.
func (k *Keyring) renew() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) == 0 || len(k.networks) == 0 {
		return nil
	}
	return k.syncLocked(false)
}

func (k *Keyring) restoreLocked() {
	list := k.protectedLocked()
	intact, err := nft.SealIntact(k.ns, list)
	if err == nil && intact {
		return
	}
	// Rules that cannot be read are being changed: replace them, too.
	k.log.Warn("another program removed the nftables rules that keep encrypted networks from being sent in clear; restoring them", "networks", len(list))
	if err := k.sealLocked(); err != nil {
		k.log.Error("could not restore the rules of encrypted networks: their packets are sent in clear until the agent restarts", "error", err.Error())
	}
}

// sealed are the networks that a definition's packets are of.
func (d Definition) sealed() (list []nft.Sealed) {
	for _, s := range d.Subnets {
		list = append(list, nft.Sealed{Port: d.Port, VNI: s.VNI})
	}
	return list
}

// entry is where a definition's packets come in.
func (d Definition) entry() entry { return entry{family(d.Local.Is4()), d.Port} }

// acquire encrypts packets to and from a node until release has been called as often.
func (k *Keyring) acquire(u *use, p pair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	used := k.usedLocked(p)
	u.nodes[p]++
	if used || len(k.keys) == 0 {
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

// release reverts a hold.
func (k *Keyring) release(u *use, p pair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if u.nodes[p]--; u.nodes[p] > 0 {
		return nil
	}
	delete(u.nodes, p)
	h, err := k.dialLocked()
	if err != nil {
		return err
	}
	return k.disconnect(h, p)
}

// disconnect removes the state of a pair of nodes, unless it is used. Preconditions: mu is held.
func (k *Keyring) disconnect(h nlwrap.Handle, p pair) error {
	if k.usedLocked(p) {
		return nil
	}
	errs := []error{ignoreMissing(h.XfrmPolicyDel(policyOut(p, 0)))}
	if !k.talksLocked(p.local, p.remote) {
		for _, key := range k.keys {
			errs = append(errs, ignoreMissing(h.XfrmStateDel(newSA(p.remote, p.local, key).id())), ignoreMissing(h.XfrmStateDel(newSA(p.local, p.remote, key).id())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove encryption of packets to %s: %w", p.remote, err)
	}
	return nil
}

// pairsLocked are those that entries of networks use.
func (k *Keyring) pairsLocked() map[pair]bool {
	all := map[pair]bool{}
	for _, uses := range k.networks {
		for _, u := range uses {
			for p := range u.nodes {
				all[p] = true
			}
		}
	}
	return all
}

func (k *Keyring) usedLocked(p pair) bool {
	for _, uses := range k.networks {
		for _, u := range uses {
			if u.nodes[p] > 0 {
				return true
			}
		}
	}
	return false
}

// talksLocked reports whether there are packets between two nodes at any port.
func (k *Keyring) talksLocked(local, remote netip.Addr) bool {
	for p := range k.pairsLocked() {
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

// syncLocked makes the kernel's state match the wanted one. State of unused nodes, from an earlier
// process, stays unless prune is set.
//
// No packet is lost meanwhile: receiving associations come first, then sending ones, then the
// policies that select the sending one. A node's former sending associations stay as long as their
// key, because packets may be on their way to them.
func (k *Keyring) syncLocked(prune bool) error {
	h, err := k.dialLocked()
	if errors.Is(err, unix.EPROTONOSUPPORT) && len(k.networks) == 0 {
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
	users := k.pairsLocked()
	talking := map[[2]netip.Addr]bool{}
	for p := range users {
		talking[[2]netip.Addr{p.local, p.remote}], talking[[2]netip.Addr{p.remote, p.local}] = true, true
	}
	keep := map[saID]bool{}
	if len(k.keys) > 0 {
		for p := range users {
			for _, key := range k.keys {
				in := newSA(p.remote, p.local, key)
				keep[in.saID], keep[newSA(p.local, p.remote, key).saID] = true, true
				errs = append(errs, have.ensure(h, in))
			}
		}
		for p := range users {
			out := newSA(p.local, p.remote, k.keys[0])
			if err := errors.Join(have.ensure(h, out), have.renew(h, out)); err != nil {
				errs = append(errs, err)
			} else if have.out[p] != out.spi {
				errs = append(errs, h.XfrmPolicyUpdate(policyOut(p, out.spi)))
			}
		}
	}
	for p := range have.out {
		if prune && !users[p] {
			errs = append(errs, ignoreMissing(h.XfrmPolicyDel(policyOut(p, 0))))
		}
	}
	for s := range have.states {
		used := talking[[2]netip.Addr{s.src, s.dst}]
		if !keep[s] && (used && len(k.keys) > 0 || prune && !used) {
			errs = append(errs, ignoreMissing(h.XfrmStateDel(s.id())))
		}
	}
	for _, uses := range k.networks {
		for _, u := range uses {
			if !have.in[u.def.entry()] {
				errs = append(errs, k.admitLocked(u.def.entry()))
				have.in[u.def.entry()] = true
			}
		}
	}
	for at := range have.in {
		if prune && !k.entersLocked(at) {
			errs = append(errs, ignoreMissing(h.XfrmPolicyDel(policyIn(at))))
		}
	}
	return errors.Join(errs...)
}

// entersLocked reports whether protected networks receive there.
func (k *Keyring) entersLocked(at entry) bool {
	for _, uses := range k.networks {
		if slices.ContainsFunc(uses, func(u *use) bool { return u.def.entry() == at }) {
			return true
		}
	}
	return false
}

// admitLocked makes the kernel accept packets of encrypted networks from our associations only.
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
