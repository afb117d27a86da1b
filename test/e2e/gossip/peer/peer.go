// Package peer is a process that is a member of a Swarm's gossip, by whatever library, and does what
// its standard input orders. It must not import what is more than the standard library, because
// modules of other versions link it. Start at Serve.
package peer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Member is what a process does. Its methods are called by several goroutines, Open first.
type Member interface {
	Open(name string, at netip.AddrPort, keys [][]byte) error
	Join(members []string) error
	Enter(network string) error
	Exit(network string) error
	// Announce tells of a record. Where it takes the place of one that differs in that it does not
	// end yet, ends is true.
	Announce(e Entry, ends bool) error
	Withdraw(e Entry) error
	// Watch tells of the records of others, as long as the process lives.
	Watch(network string, say func(e Entry, gone bool)) error
	SetKeys(keys [][]byte) error
	Members() []netip.Addr
	Leave()
}

// Entry is a record as it goes over the wire.
type Entry struct {
	Network, Table, Key string
	Value               []byte
}

// Order is a line of the standard input.
type Order struct {
	ID      int
	Op      string // open, join, enter, exit, announce, withdraw, watch, keys, members, leave
	Name    string
	At      netip.AddrPort
	Keys    [][]byte
	Join    []string
	Network string
	Entry   Entry
	Ends    bool
}

// Answer is a line of the standard output: that an order is carried out, or a change of which one
// to watch tells.
type Answer struct {
	ID      int // the order's
	Err     string
	Members []netip.Addr
	Change  *Change
}

// Change is what has become of a record.
type Change struct {
	Entry Entry
	Gone  bool
}

// Serve carries out orders until there are no more. Each is carried out by itself, because some
// take long.
func Serve(in io.Reader, out io.Writer, m Member) error {
	var mu sync.Mutex // serializes lines of out
	enc := json.NewEncoder(out)
	say := func(a Answer) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(a)
	}
	for dec := json.NewDecoder(bufio.NewReader(in)); ; {
		var o Order
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		go func() {
			a := Answer{ID: o.ID}
			var err error
			switch o.Op {
			case "open":
				err = m.Open(o.Name, o.At, o.Keys)
			case "join":
				err = m.Join(o.Join)
			case "enter":
				err = m.Enter(o.Network)
			case "exit":
				err = m.Exit(o.Network)
			case "announce":
				err = m.Announce(o.Entry, o.Ends)
			case "withdraw":
				err = m.Withdraw(o.Entry)
			case "watch":
				err = m.Watch(o.Network, func(e Entry, gone bool) { say(Answer{ID: o.ID, Change: &Change{e, gone}}) })
			case "keys":
				err = m.SetKeys(o.Keys)
			case "members":
				a.Members = m.Members()
			case "leave":
				m.Leave()
			default:
				err = fmt.Errorf("order %q", o.Op)
			}
			if err != nil {
				a.Err = err.Error()
			}
			say(a)
		}()
	}
}

// Library is what networkdb is in all its versions.
type Library interface {
	Join(members []string) error
	JoinNetwork(network string) error
	LeaveNetwork(network string) error
	CreateEntry(table, network, key string, value []byte) error
	UpdateEntry(table, network, key string, value []byte) error
	DeleteEntry(table, network, key string) error
	SetKey(key []byte)
	SetPrimaryKey(key []byte)
	RemoveKey(key []byte)
	Close()
}

// Own is what a member has announced, in which it does as dockerd. It is safe for concurrent use.
type Own struct {
	Library

	mu   sync.Mutex // guards has, keys; serializes what is announced
	has  map[[3]string]bool
	keys [][]byte
}

// NewOwn returns what a member with these keys has that has announced nothing.
func NewOwn(l Library, keys [][]byte) *Own {
	return &Own{Library: l, has: map[[3]string]bool{}, keys: keys}
}

// Has reports whether a record is the member's own.
func (o *Own) Has(network, table, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.has[[3]string{network, table, key}]
}

// Enter is Member's.
func (o *Own) Enter(network string) error { return o.JoinNetwork(network) }

// exitPause is how long dockerd takes at least from the end of the last task on a network to the
// start of the next one. Some versions tell nobody that they have entered a network which they have left just
// before.
const exitPause = time.Second

// Exit is Member's.
func (o *Own) Exit(network string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.has {
		if k[0] == network {
			delete(o.has, k)
		}
	}
	defer func() { <-time.After(exitPause) }()
	return o.LeaveNetwork(network)
}

// Announce is Member's. dockerd changes a record where it lies only to say that its endpoint ends.
func (o *Own) Announce(e Entry, ends bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := [3]string{e.Network, e.Table, e.Key}
	if o.has[k] && ends {
		return o.UpdateEntry(e.Table, e.Network, e.Key, e.Value)
	}
	if o.has[k] {
		if err := o.DeleteEntry(e.Table, e.Network, e.Key); err != nil {
			return err
		}
	}
	o.has[k] = true
	return o.create(e)
}

// create makes an entry. Some versions do not, where one was deleted in the last half hour, but
// change it into one that is not.
func (o *Own) create(e Entry) error {
	if err := o.CreateEntry(e.Table, e.Network, e.Key, e.Value); err == nil {
		return nil
	}
	return o.UpdateEntry(e.Table, e.Network, e.Key, e.Value)
}

// Withdraw is Member's. One of a process of before is announced again first.
func (o *Own) Withdraw(e Entry) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := [3]string{e.Network, e.Table, e.Key}
	if !o.has[k] {
		if err := o.create(e); err != nil {
			return err
		}
	}
	delete(o.has, k)
	return o.DeleteEntry(e.Table, e.Network, e.Key)
}

// SetKeys is Member's, in the order in which dockerd does it.
func (o *Own) SetKeys(keys [][]byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	stays := map[string]bool{}
	for _, k := range keys {
		stays[string(k)] = true
		o.SetKey(k)
	}
	o.SetPrimaryKey(keys[0])
	for _, k := range o.keys {
		if !stays[string(k)] {
			o.RemoveKey(k)
		}
	}
	o.keys = keys
	return nil
}

// Leave is Member's.
func (o *Own) Leave() { o.Close() }
