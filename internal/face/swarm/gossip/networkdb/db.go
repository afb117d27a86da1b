// Package networkdb is gossip.Member by Docker's networkdb: the one place that links it.
//
// It knows only the tables of records, not their meaning. Start at New.
package networkdb

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	lib "github.com/moby/moby/v2/daemon/libnetwork/networkdb"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Options are the parameters of New.
type Options struct {
	Name      string       // gossip.NodeName
	Advertise netip.Addr   // where others reach this member
	Bind      netip.Addr   // zero: every address
	Port      uint16       // TCP and UDP; 0: gossip.DefaultPort
	Keys      []gossip.Key // at least one; the first is the one to encrypt by
	Logger    *slog.Logger
}

// DB is a gossip.Member.
type DB struct {
	db   *lib.NetworkDB
	log  *slog.Logger
	own  netip.AddrPort
	name string
	gone chan struct{} // closed by Leave

	mu       sync.Mutex // guards keys, networks, exits, left
	keys     []gossip.Key
	networks map[string]*entered
	exits    map[string]time.Time // when networks were left, the last exitPause
	left     bool
}

var _ gossip.Member = (*DB)(nil)

// exitPause is how long a left network is not entered again. The library sends the news of both
// once or twice, and one may overtake the other: a dockerd 28 then ignores this member's
// announcements there for up to a minute.
const exitPause = time.Second

// entered is a network that the member takes part in, or is about to.
type entered struct {
	begun  chan struct{} // closed when the library takes part
	synced chan struct{} // closed when Enter is done
	err    error         // of Enter, once synced is closed

	mu  sync.Mutex // guards own, out; serializes announcements
	own map[recordKey][]byte
	out bool
}

type recordKey struct{ table, endpoint string }

// New returns a member that listens and knows nobody yet.
func New(o Options) (*DB, error) {
	if len(o.Keys) == 0 || !o.Advertise.IsValid() || o.Name == "" {
		return nil, fmt.Errorf("gossip: name, address and key are required: %w", errdefs.ErrInvalidArgument)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Port == 0 {
		o.Port = gossip.DefaultPort
	}
	// The library writes keys to the file that this names.
	if err := os.Unsetenv("NETWORKDBKEYLOGFILE"); err != nil {
		return nil, err
	}
	c := lib.DefaultConfig()
	c.NodeID, c.AdvertiseAddr, c.BindPort = o.Name, o.Advertise.String(), int(o.Port)
	if o.Bind.IsValid() {
		c.BindAddr = o.Bind.String()
	}
	// The library logs its whole configuration: it begins with a key that nobody uses.
	var unused gossip.Key
	if _, err := rand.Read(unused[:]); err != nil {
		return nil, err
	}
	c.Keys = [][]byte{unused[:]}
	db, err := lib.New(c)
	if err != nil {
		return nil, fmt.Errorf("gossip at port %d: %w: %w", o.Port, err, errdefs.ErrUnavailable)
	}
	d := &DB{db: db, log: o.Logger, own: netip.AddrPortFrom(o.Advertise, o.Port), name: o.Name, keys: []gossip.Key{unused}, networks: map[string]*entered{}, exits: map[string]time.Time{}, gone: make(chan struct{})}
	go d.repeat()
	return d, d.SetKeys(o.Keys)
}

// SetKeys implements gossip.Member. A key is added before it encrypts, and stops encrypting before it is
// removed.
func (d *DB) SetKeys(keys []gossip.Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("keys of the gossip: there are none: %w", errdefs.ErrInvalidArgument)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		d.db.SetKey(slices.Clone(k[:]))
	}
	d.db.SetPrimaryKey(keys[0][:])
	for _, old := range d.keys {
		if !slices.Contains(keys, old) {
			d.db.RemoveKey(old[:])
		}
	}
	d.keys = slices.Clone(keys)
	return nil
}

// Join implements gossip.Member.
func (d *DB) Join(ctx context.Context, members []netip.AddrPort) error {
	var list []string
	for _, m := range members {
		if m != d.own {
			list = append(list, m.String())
		}
	}
	if len(list) == 0 && len(members) > 0 {
		return nil // this is the only known one
	}
	if len(list) == 0 {
		return fmt.Errorf("join the gossip: no address of another member is known: %w", errdefs.ErrUnavailable)
	}
	done := make(chan error, 1)
	go func() { done <- d.db.Join(list) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("join the gossip: %w: %w", err, errdefs.ErrUnavailable)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("join the gossip: %w", context.Cause(ctx))
	}
}

// begin begins to take part in a network, unless that has begun.
func (d *DB) begin(network string) (*entered, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return nil, fmt.Errorf("enter network %s: this member has left: %w", network, errdefs.ErrFailedPrecondition)
	}
	n := d.networks[network]
	if n == nil {
		n = &entered{begun: make(chan struct{}), synced: make(chan struct{}), own: map[recordKey][]byte{}}
		d.networks[network] = n
		pause := time.Until(d.exits[network].Add(exitPause))
		go func() {
			defer close(n.synced)
			<-time.After(pause)
			go d.awaitBegun(network, n)
			n.err = d.db.JoinNetwork(network)
		}()
	}
	return n, nil
}

// beginPoll is the interval of checks whether the library takes part in a network. It reports that by itself only
// after it has synchronized with all other members.
const beginPoll = 10 * time.Millisecond

// awaitBegun closes begun as soon as the library takes part in a network.
func (d *DB) awaitBegun(network string, n *entered) {
	tick := time.NewTicker(beginPoll)
	defer tick.Stop()
	for {
		select {
		case <-n.synced:
			if n.err == nil {
				close(n.begun)
			}
			return
		case <-tick.C:
		}
		if slices.ContainsFunc(d.db.Peers(network), func(p lib.PeerInfo) bool { return p.Name == d.name }) {
			close(n.begun)
			return
		}
	}
}

// Begin implements gossip.Member.
func (d *DB) Begin(ctx context.Context, network string) error {
	n, err := d.begin(network)
	if err != nil {
		return err
	}
	select {
	case <-n.begun:
		return nil
	case <-n.synced:
		return d.Enter(ctx, network)
	case <-ctx.Done():
		return fmt.Errorf("enter network %s: %w", network, context.Cause(ctx))
	}
}

// Enter implements gossip.Member.
func (d *DB) Enter(ctx context.Context, network string) error {
	n, err := d.begin(network)
	if err != nil {
		return err
	}
	select {
	case <-n.synced:
	case <-ctx.Done():
		return fmt.Errorf("enter network %s: %w", network, context.Cause(ctx))
	}
	if n.err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.networks[network] == n { // the next call tries again
		delete(d.networks, network)
	}
	return fmt.Errorf("enter network %s: %w: %w", network, n.err, errdefs.ErrUnavailable)
}

// Exit implements gossip.Member.
func (d *DB) Exit(network string) error {
	d.mu.Lock()
	n := d.networks[network]
	delete(d.networks, network)
	d.mu.Unlock()
	if n == nil {
		return nil
	}
	// The library lets go of a network also while it still asks other members for it.
	select {
	case <-n.begun:
	case <-n.synced:
		if n.err != nil {
			return nil // it was never entered
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out, n.own = true, nil
	err := d.db.LeaveNetwork(network)
	d.mu.Lock()
	maps.DeleteFunc(d.exits, func(_ string, at time.Time) bool { return time.Since(at) > exitPause })
	d.exits[network] = time.Now()
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("exit network %s: %w: %w", network, err, errdefs.ErrUnavailable)
	}
	return nil
}

// in returns a network that is entered, or about to be.
func (d *DB) in(network string) (*entered, error) {
	d.mu.Lock()
	n := d.networks[network]
	d.mu.Unlock()
	notYet := fmt.Errorf("network %s is not entered: %w", network, errdefs.ErrFailedPrecondition)
	if n == nil {
		return nil, notYet
	}
	select {
	case <-n.synced:
		if n.err != nil {
			return nil, notYet
		}
		return n, nil
	case <-n.begun:
		return n, nil
	default:
		return nil, notYet
	}
}

// Announce implements gossip.Member. A record is changed where it lies only to say that its endpoint is
// about to end: dockerd takes no other change of one that it has.
func (d *DB) Announce(id gossip.ID, r gossip.Record) error {
	table, value, err := gossip.Encode(r)
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	n, err := d.in(id.Network)
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := recordKey{table, id.Endpoint}
	old, there := n.own[key]
	switch {
	case n.out:
		return fmt.Errorf("announce: network %s was left: %w", id.Network, errdefs.ErrFailedPrecondition)
	case there && bytes.Equal(old, value):
		return nil
	case there && onlyDisables(old, r):
		err = d.db.UpdateEntry(key.table, id.Network, id.Endpoint, value)
	default:
		if there {
			if err := d.db.DeleteEntry(key.table, id.Network, id.Endpoint); err != nil {
				return fmt.Errorf("announce: %w: %w", err, errdefs.ErrUnavailable)
			}
		}
		err = d.create(id, key.table, value)
	}
	if err != nil {
		return fmt.Errorf("announce: %w: %w", err, errdefs.ErrUnavailable)
	}
	n.own[key] = value
	return nil
}

// create makes an entry of this member's, also where there is one of an earlier process.
func (d *DB) create(id gossip.ID, table string, value []byte) error {
	if err := d.db.CreateEntry(table, id.Network, id.Endpoint, value); err == nil {
		return nil
	}
	return errors.Join(d.db.DeleteEntry(table, id.Network, id.Endpoint), d.db.CreateEntry(table, id.Network, id.Endpoint, value))
}

// onlyDisables reports whether the only difference between an encoded record and r is that r's endpoint is about to end.
func onlyDisables(old []byte, r gossip.Record) bool {
	e, ok := r.(gossip.Endpoint)
	if !ok || !e.Disabled {
		return false
	}
	e.Disabled = false
	_, value, err := gossip.Encode(e)
	return err == nil && bytes.Equal(value, old)
}

// Withdraw implements gossip.Member. Peers drop the deletion of an unknown entry, and read the value of
// a deleted one: so an entry of an earlier process is made again first.
func (d *DB) Withdraw(id gossip.ID, r gossip.Record) error {
	table, value, err := gossip.Encode(r)
	if err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	n, err := d.in(id.Network)
	if err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := recordKey{table, id.Endpoint}
	if n.out {
		return nil // with all others
	}
	_, there := n.own[key]
	if there || d.create(id, key.table, value) == nil {
		err = d.db.DeleteEntry(key.table, id.Network, id.Endpoint)
	}
	if err != nil {
		return fmt.Errorf("withdraw: %w: %w", err, errdefs.ErrUnavailable)
	}
	delete(n.own, key)
	return nil
}

// The bounds of a Watch.
const (
	maxRecords  = 1 << 16 // of one network
	maxBytes    = 64 << 20
	maxKey      = 255 // bytes
	maxWarnings = 32  // about records of a wrong form
)

// watch is the state of one Watch.
type watch struct {
	log      *slog.Logger
	have     map[recordKey]knownRecord
	size     int // of all of them
	warnings int
}

// knownRecord is a record of the network, and its length.
type knownRecord struct {
	record gossip.Record
	size   int
}

// forget forgets a record, if there is one.
func (w *watch) forget(key recordKey) {
	w.size -= w.have[key].size
	delete(w.have, key)
}

// Watch implements gossip.Member.
func (d *DB) Watch(ctx context.Context, network string) iter.Seq[gossip.Change] {
	return func(yield func(gossip.Change) bool) {
		events, cancel := d.db.Watch("", network)
		defer cancel()
		w := watch{log: d.log, have: map[recordKey]knownRecord{}}
		for {
			select {
			case <-ctx.Done():
				return
			case <-events.Done():
				return
			case e := <-events.C:
				if ev, ok := e.(lib.WatchEvent); ok {
					if c, ok := w.take(ev); ok && !yield(c) {
						return
					}
				}
			}
		}
	}
}

// take turns an event into a change; ok is false when it is none.
func (w *watch) take(ev lib.WatchEvent) (c gossip.Change, ok bool) {
	if !gossip.IsTable(ev.Table) {
		return c, false
	}
	key := recordKey{ev.Table, ev.Key}
	old, there := w.have[key]
	c = gossip.Change{ID: gossip.ID{Network: ev.NetworkID, Endpoint: ev.Key}, Record: old.record, Gone: true}
	if ev.Value == nil {
		w.forget(key)
		return c, there
	}
	r, err := gossip.Decode(ev.Table, ev.Value)
	if err == nil && len(ev.Key) > maxKey {
		err = fmt.Errorf("a key of %d bytes: %w", len(ev.Key), errdefs.ErrInvalidArgument)
	}
	size := len(ev.Key) + len(ev.Value)
	if err == nil && (!there && len(w.have) >= maxRecords || w.size-old.size+size > maxBytes) {
		err = fmt.Errorf("the network has %d records of %d bytes already: %w", len(w.have), w.size, errdefs.ErrResourceExhausted)
	}
	if err != nil {
		if w.warnings++; w.warnings <= maxWarnings {
			w.log.Warn("a record of the gossip is left out", "network", ev.NetworkID, "table", ev.Table, "endpoint", fmt.Sprintf("%.60s", ev.Key), "error", err.Error(), "last_warning", w.warnings == maxWarnings)
		}
		w.forget(key) // it has taken the place of the one before
		return c, there
	}
	w.size += size - old.size
	w.have[key] = knownRecord{r, size}
	return gossip.Change{ID: c.ID, Record: r}, true
}

// Members implements gossip.Member.
func (d *DB) Members() []netip.Addr {
	var list []netip.Addr
	for _, p := range d.db.ClusterPeers() {
		if p.IP.IsValid() && p.Name != d.name {
			list = append(list, p.IP)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Leave implements gossip.Member.
func (d *DB) Leave() {
	d.mu.Lock()
	left := d.left
	d.left = true
	networks := slices.Collect(maps.Values(d.networks))
	d.networks = map[string]*entered{}
	d.mu.Unlock()
	for _, n := range networks {
		n.mu.Lock()
		n.out = true
		n.mu.Unlock()
	}
	if !left {
		close(d.gone)
		d.db.Close()
	}
}
