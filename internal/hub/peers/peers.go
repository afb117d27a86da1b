// Package peers lists the hubs of one etcd, and elects a leader, which makes tasks and decides about
// the nodes of lost hubs. It has no consensus of its own: a hub is registered as long as its record,
// which etcd drops when the hub does not renew it, and each write of the leader has the condition
// that it still leads.
//
// It does not know the leader's work. Start at Join, Peers.Run and Peers.Lead.
package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// The records: that of each hub, by its id, and the leader's.
const (
	records   = "hub/"
	alive     = records + "alive/"
	leaderKey = records + "leads"
)

// DefaultTTL is how long a hub counts as there after it was last heard of.
const DefaultTTL = 10 * time.Second

// Peer is a hub.
type Peer struct {
	// ID is that of this run of it, Addr its address for nodes.
	ID   string `json:"-"`
	Addr string `json:"addr"`
}

// leaderRecord is the leader's record. Each write of the leader is another turn.
type leaderRecord struct {
	ID   string `json:"id"`
	Turn uint64 `json:"turn"`
}

// Options are the parameters of Join.
type Options struct {
	Store     *store.Store
	Inventory *inventory.Inventory
	Advertise string
	TTL       time.Duration // 0 is DefaultTTL
	Log       *slog.Logger
}

// Peers are the hubs, as one of them sees them.
type Peers struct {
	o       Options
	contact contact

	mu      sync.Mutex // guards self, loan, live, leader, rev, changed
	self    Peer
	loan    *store.Loan
	live    map[string]Peer
	leader  leaderRecord
	rev     int64         // of leader
	changed chan struct{} // closed at the next change
}

// Join registers a hub, until Leave.
func Join(ctx context.Context, o Options) (*Peers, error) {
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	p := &Peers{o: o, contact: contact{last: time.Now()}, self: Peer{ca.NewID(), o.Advertise}, live: map[string]Peer{}, changed: make(chan struct{})}
	if o.Store.Alone() { // the records are those of earlier runs
		before, _, err := o.Store.List(ctx, alive)
		if err != nil {
			return nil, err
		}
		for _, r := range before {
			if _, err := o.Store.Commit(ctx, store.Write{Key: r.Key, Delete: true}); err != nil {
				return nil, err
			}
		}
	}
	if err := p.show(ctx); err != nil {
		return nil, err
	}
	p.live[p.self.ID] = p.self
	return p, nil
}

// show makes this hub's record.
func (p *Peers) show(ctx context.Context) error {
	data, err := json.Marshal(Peer{Addr: p.o.Advertise})
	if err != nil {
		return err
	}
	loan, err := p.o.Store.Lend(ctx, alive+p.Self(), data, p.o.TTL)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loan = loan
	return nil
}

// Leave has the others know at once that this hub is gone.
func (p *Peers) Leave(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loan == nil {
		return nil
	}
	return p.loan.Return(ctx)
}

// Run renews this hub's record and follows those of the others, until ctx ends. lost is called when this
// hub's record has expired: the others may take its nodes, and it comes back with another id.
func (p *Peers) Run(ctx context.Context, lost func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { cancel(p.o.Store.Follow(ctx, records, p.take)) })
	if !p.o.Store.Alone() {
		following.Go(func() { cancel(p.ask(ctx)) })
	}
	for {
		p.mu.Lock()
		gone := p.loan.Lost
		p.mu.Unlock()
		select {
		case <-gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.o.Log.WarnContext(ctx, "this hub has not reached etcd for too long; it ends its nodes' sessions so that they find other hubs")
		p.forget()
		lost()
		for {
			err := p.show(ctx)
			if err == nil {
				break
			}
			if err := p.o.Store.Later(ctx, err); err != nil {
				return err
			}
		}
		p.o.Log.InfoContext(ctx, "this hub reaches etcd again")
	}
}

// forget gives this hub another id, which is not registered yet.
func (p *Peers) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, p.self.ID)
	p.self.ID = ca.NewID()
	p.wakeLocked()
}

func (p *Peers) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// take takes over the records.
func (p *Peers) take(all []store.Record) error {
	live := map[string]Peer{}
	var leader leaderRecord
	rev := int64(store.Absent)
	for _, r := range all {
		id, hub := strings.CutPrefix(r.Key, alive)
		switch {
		case hub:
			peer := Peer{ID: id}
			if err := json.Unmarshal(r.Value, &peer); err != nil {
				p.o.Log.Error("the record of a hub is damaged; it is ignored", "hub", id, "error", err)
				continue
			}
			live[id] = peer
		case r.Key == leaderKey:
			rev = r.Rev
			if err := json.Unmarshal(r.Value, &leader); err != nil {
				p.o.Log.Error("the record of the hub that leads is damaged", "error", err)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if leader == p.leader && rev == p.rev && maps.Equal(live, p.live) {
		return nil
	}
	p.live, p.leader, p.rev = live, leader, rev
	p.wakeLocked()
	return nil
}

// Self is this hub's id.
func (p *Peers) Self() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.self.ID
}

// Leader returns the ID of the leading hub, or "" while there is none.
func (p *Peers) Leader() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.live[p.leader.ID]; !there {
		return ""
	}
	return p.leader.ID
}

// Alive reports whether a hub is registered.
func (p *Peers) Alive(id string) bool {
	_, ok := p.Get(id)
	return ok
}

// Get returns a registered hub.
func (p *Peers) Get(id string) (Peer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer, ok := p.live[id]
	return peer, ok
}

// List returns the registered hubs, this one first, and a channel that is closed when the list or the
// leader changes.
func (p *Peers) List() ([]Peer, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	self := p.self.ID
	list := slices.SortedFunc(maps.Values(p.live), func(a, b Peer) int {
		if (a.ID == self) != (b.ID == self) {
			if a.ID == self {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Addr+" "+a.ID, b.Addr+" "+b.ID)
	})
	return list, p.changed
}

// errDeposed ends the work of a former leader.
var errDeposed = errors.New("another hub leads")

// Lead calls fn whenever this hub leads, with a context that ends when it does not any more, until ctx ends or fn
// returns while it leads.
func (p *Peers) Lead(ctx context.Context, fn func(ctx context.Context, t *Term) error) error {
	for {
		p.mu.Lock()
		leader, rev, changed, id := p.leader, p.rev, p.changed, p.self.ID
		_, there := p.live[leader.ID]
		_, self := p.live[id]
		p.mu.Unlock()
		if rev != 0 && self && (!there || leader.ID == id) {
			err := p.term(ctx, leader, rev, fn)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil && !errors.Is(err, errDeposed) {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// term begins to lead, in place of a hub that is not there, and does until another one leads or this one is
// not there for the others.
func (p *Peers) term(ctx context.Context, before leaderRecord, rev int64, fn func(ctx context.Context, t *Term) error) error {
	t := &Term{p: p, id: p.Self(), turn: before.Turn, rev: rev}
	if err := t.again(ctx); err != nil {
		if errors.Is(err, errDeposed) || ctx.Err() != nil { // it was taken meanwhile: its record comes
			return p.moment(ctx)
		}
		p.o.Log.WarnContext(ctx, "could not begin to lead; will try again", "error", err)
		return p.moment(ctx)
	}
	p.o.Log.InfoContext(ctx, "this hub leads and places tasks", "hub", t.id)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.depose = cancel
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		for {
			p.mu.Lock()
			leader, current, changed := p.leader, p.rev, p.changed
			_, self := p.live[t.id]
			p.mu.Unlock()
			if !self || current > rev && leader.ID != t.id {
				cancel(errDeposed)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return fn(ctx, t)
}

// moment waits a little for the leader's record.
func (p *Peers) moment(ctx context.Context) error {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return errDeposed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// MaxWrites is how many writes Term.Commit may do.
const MaxWrites = store.MaxWrites - 1

// Term is a time in which this hub leads.
type Term struct {
	p      *Peers
	id     string // this hub's
	depose context.CancelCauseFunc

	mu   sync.Mutex // guards turn, rev
	turn uint64
	rev  int64 // of the record that says so
}

// Commit does writes in one transaction if this hub still leads, and returns when the inventory has them. Decisions from
// the inventory before an error must be made again.
//
// A transaction with an unknown result cannot be committed later: the next turn is written first, so that its
// condition fails.
func (t *Term) Commit(ctx context.Context, writes ...store.Write) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn++ // each attempt has a number of its own
	mine, err := t.record()
	if err != nil {
		return err
	}
	rev, err := t.p.o.Inventory.Commit(ctx, append(slices.Clone(writes), mine)...)
	if err == nil {
		t.rev = rev
		return nil
	}
	if errdefs.IsInvalidArgument(err) || errdefs.IsResourceExhausted(err) {
		return err // it was not tried
	}
	return t.settle(ctx, t.turn, err)
}

// settle finds the result of an attempt that ended with an error, and returns nil if it was committed.
// Preconditions: mu is held.
func (t *Term) settle(ctx context.Context, attempt uint64, failure error) error {
	for {
		var now leaderRecord
		r, err := t.p.o.Store.Get(ctx, leaderKey)
		if err == nil {
			err = json.Unmarshal(r.Value, &now)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !errdefs.IsUnavailable(err), err == nil && now.ID != t.id:
			t.depose(errDeposed)
			return errors.Join(errDeposed, err)
		case err == nil && r.Rev != t.rev: // this attempt, or an earlier one
			t.rev = r.Rev
			if err := t.p.o.Inventory.Reach(ctx, r.Rev); err != nil {
				return err
			}
			if now.Turn == attempt {
				return nil
			}
			return failure
		case err == nil && errdefs.IsAborted(failure): // another record was not as it was thought to be
			return failure
		case err == nil: // it is made impossible
			if t.againLocked(ctx) == nil {
				return failure
			}
		}
		if err := t.p.moment(ctx); !errors.Is(err, errDeposed) {
			return err
		}
	}
}

// record is the write that says that this hub leads, if nobody has said so since. Preconditions: mu is held.
func (t *Term) record() (store.Write, error) {
	data, err := json.Marshal(leaderRecord{t.id, t.turn})
	return store.Write{Key: leaderKey, Value: data, If: t.rev}, err
}

// again writes the record, after which nothing can be committed that was begun with the one before.
func (t *Term) again(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.againLocked(ctx)
}

func (t *Term) againLocked(ctx context.Context) error {
	t.turn++
	mine, err := t.record()
	if err != nil {
		return err
	}
	rev, err := t.p.o.Inventory.Commit(ctx, mine)
	if errdefs.IsAborted(err) {
		return fmt.Errorf("%w: %w", errDeposed, err)
	}
	if err == nil {
		t.rev = rev
	}
	return err
}
