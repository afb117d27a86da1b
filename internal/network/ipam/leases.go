package ipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// keyPrefix starts the keys of leases in the store. A lease is stored under its first address, so
// that leasing the address again overwrites the previous record: one write per lease and per
// release, and no stale records.
const keyPrefix = "lease/"

// Lease is the addresses of one sandbox.
type Lease struct {
	Sandbox core.ID        `json:"sandbox"`
	Addrs   []netip.Prefix `json:"addrs"` // with the prefix length of their range
	// Gateways are the ranges' gateways, one per Addrs; zero where a range
	// has none.
	Gateways []netip.Addr `json:"gateways"`
	// Freed is when it was released, zero while it is held.
	Freed time.Time `json:"freed,omitzero"`
}

// key returns the lease's key in the store.
func (l Lease) key() string { return keyPrefix + l.Addrs[0].Addr().String() }

// Leases leases addresses from the ranges and records the holder of each. It is safe for concurrent
// use.
type Leases struct {
	kv   core.KV
	rest time.Duration
	now  func() time.Time

	reserved map[netip.Addr]bool // never leased

	mu     sync.Mutex // guards ranges, held, busy, rested
	ranges []Range
	held   map[core.ID]Lease
	busy   map[netip.Addr]core.ID
	rested map[netip.Addr]former
}

// former is the last holder of an address.
type former struct {
	id    core.ID
	freed time.Time
}

// Options are the parameters of Open.
type Options struct {
	KV       core.KV          // required
	Reserved []netip.Addr     // never leased
	Rest     time.Duration    // how long a freed address is not leased again; 0 is not at all
	Now      func() time.Time // nil: time.Now
}

// Open reads the stored leases. DataLoss when a record cannot be read.
func Open(o Options) (*Leases, error) {
	l := &Leases{
		kv: o.KV, rest: o.Rest, now: o.Now,
		reserved: map[netip.Addr]bool{}, held: map[core.ID]Lease{}, busy: map[netip.Addr]core.ID{}, rested: map[netip.Addr]former{},
	}
	if l.now == nil {
		l.now = time.Now
	}
	for _, a := range o.Reserved {
		l.reserved[a] = true
	}
	for key, value := range o.KV.All(keyPrefix) {
		var lease Lease
		if err := json.Unmarshal(value, &lease); err != nil || len(lease.Addrs) == 0 || len(lease.Gateways) != len(lease.Addrs) {
			return nil, fmt.Errorf("read lease %s: %w: %w", key, errOr(err), errdefs.ErrDataLoss)
		}
		if !lease.Freed.IsZero() {
			for _, a := range lease.Addrs {
				if f, ok := l.rested[a.Addr()]; !ok || f.freed.Before(lease.Freed) {
					l.rested[a.Addr()] = former{lease.Sandbox, lease.Freed}
				}
			}
			continue
		}
		l.held[lease.Sandbox] = lease
		for _, a := range lease.Addrs {
			l.busy[a.Addr()] = lease.Sandbox
		}
	}
	return l, nil
}

func errOr(err error) error {
	if err == nil {
		return errShape
	}
	return err
}

var errShape = fmt.Errorf("the numbers of addresses and gateways differ")

// SetRanges sets the ranges for later leases. Existing leases stay.
func (l *Leases) SetRanges(ranges []Range) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranges = slices.Clone(ranges)
}

// Ranges returns the ranges of SetRanges.
func (l *Leases) Ranges() []Range {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ranges)
}

// Acquire leases one address of each family that has a range; wanted names particular addresses
// to lease. When the sandbox already has a lease, that is returned. stale are the sandboxes that
// had one of the addresses before: anything left of them must be removed first.
//
// FailedPrecondition: there is no range. ResourceExhausted: all addresses of a family are leased
// or resting. InvalidArgument, AlreadyExists: a wanted address is in no range, or is leased.
func (l *Leases) Acquire(id core.ID, wanted []netip.Addr) (lease Lease, stale []core.ID, err error) {
	lease, stale, fresh, err := l.reserve(id, wanted)
	if err != nil || !fresh {
		return lease, nil, err
	}
	// The write may wait for a disk: others may reserve meanwhile.
	if err := l.store(lease); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dropLocked(lease)
		return Lease{}, nil, fmt.Errorf("store lease of %s: %w", id.Short(), err)
	}
	return lease, stale, nil
}

func (l *Leases) store(lease Lease) error {
	value, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	return l.kv.Put(lease.key(), value)
}

// reserve reserves addresses in memory; fresh is false when id already had some.
func (l *Leases) reserve(id core.ID, wanted []netip.Addr) (lease Lease, stale []core.ID, fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease, ok := l.held[id]; ok {
		return lease, nil, false, nil
	}
	if len(l.ranges) == 0 {
		return Lease{}, nil, false, fmt.Errorf("lease an address: no address range configured: %w", errdefs.ErrFailedPrecondition)
	}
	lease = Lease{Sandbox: id}
	for _, is4 := range []bool{true, false} {
		a, r, err := l.pickLocked(is4, wanted)
		if err != nil {
			return Lease{}, nil, false, err
		}
		if !a.IsValid() {
			continue
		}
		lease.Addrs = append(lease.Addrs, netip.PrefixFrom(a, r.Prefix.Bits()))
		lease.Gateways = append(lease.Gateways, r.Gateway)
	}
	l.held[id] = lease
	for _, a := range lease.Addrs {
		l.busy[a.Addr()] = id
		if f, ok := l.rested[a.Addr()]; ok && !slices.Contains(stale, f.id) {
			stale = append(stale, f.id)
		}
		delete(l.rested, a.Addr())
	}
	return lease, stale, true, nil
}

func (l *Leases) dropLocked(lease Lease) {
	delete(l.held, lease.Sandbox)
	for _, a := range lease.Addrs {
		delete(l.busy, a.Addr())
	}
}

// pickLocked returns a free address of one family, or the zero Addr when the family has no range.
// l.mu is held.
func (l *Leases) pickLocked(is4 bool, wanted []netip.Addr) (netip.Addr, Range, error) {
	for _, a := range wanted {
		if a.Is4() != is4 {
			continue
		}
		i := slices.IndexFunc(l.ranges, func(r Range) bool { return r.leasable(a) })
		if i < 0 {
			return a, Range{}, fmt.Errorf("lease %s: in none of the ranges: %w", a, errdefs.ErrInvalidArgument)
		}
		if l.reserved[a] {
			return a, Range{}, fmt.Errorf("lease %s: it is reserved: %w", a, errdefs.ErrAlreadyExists)
		}
		if holder, ok := l.busy[a]; ok {
			return a, Range{}, fmt.Errorf("lease %s: held by sandbox %s: %w", a, holder, errdefs.ErrAlreadyExists)
		}
		return a, l.ranges[i], nil
	}
	now, asked, resting := l.now(), 0, 0
	var next time.Time
	for _, r := range l.ranges {
		if r.Prefix.Addr().Is4() != is4 {
			continue
		}
		asked++
		first, last := r.choice()
		for a := first; a.IsValid() && a.Compare(last) <= 0; a = a.Next() {
			if _, ok := l.busy[a]; ok || a == r.Gateway || l.reserved[a] {
				continue
			}
			f, ok := l.rested[a]
			if !ok {
				return a, r, nil
			}
			ready := f.freed.Add(l.rest)
			// A clock that was set back must not withhold an address for ever.
			if !now.Before(ready) || f.freed.After(now) {
				return a, r, nil
			}
			if resting++; next.IsZero() || ready.Before(next) {
				next = ready
			}
		}
	}
	switch {
	case asked == 0:
		return netip.Addr{}, Range{}, nil
	case resting > 0:
		return netip.Addr{}, Range{}, fmt.Errorf("lease an address: address range exhausted: %d were freed just now and rest, the next is free in %s: %w",
			resting, next.Sub(now).Round(time.Second), errdefs.ErrResourceExhausted)
	default:
		return netip.Addr{}, Range{}, fmt.Errorf("lease an address: address range exhausted: every address of %s is leased: %w", l.namesLocked(is4), errdefs.ErrResourceExhausted)
	}
}

func (l *Leases) namesLocked(is4 bool) string {
	var s string
	for _, r := range l.ranges {
		if r.Prefix.Addr().Is4() != is4 {
			continue
		}
		if s != "" {
			s += ", "
		}
		if r.Pool.IsValid() {
			s += r.Pool.String()
			continue
		}
		s += r.Prefix.String()
	}
	return s
}

// Release frees the sandbox's addresses. It is idempotent.
func (l *Leases) Release(id core.ID) error {
	lease, ok := l.Held(id)
	if !ok {
		return nil
	}
	lease.Freed = l.now().UTC()
	if err := l.store(lease); err != nil {
		return fmt.Errorf("return lease of %s: %w", id.Short(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(lease)
	for _, a := range lease.Addrs {
		l.rested[a.Addr()] = former{id, lease.Freed}
	}
	return nil
}

// Held returns the lease of a sandbox.
func (l *Leases) Held(id core.ID) (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, ok := l.held[id]
	return lease, ok
}

// All returns the leases that are held, in no particular order.
func (l *Leases) All() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Lease, 0, len(l.held))
	for _, lease := range l.held {
		all = append(all, lease)
	}
	return all
}

// Former returns the last holder of a freed address, and the time at which it was freed.
func (l *Leases) Former(a netip.Addr) (core.ID, time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, ok := l.rested[a]
	return f.id, f.freed, ok
}
