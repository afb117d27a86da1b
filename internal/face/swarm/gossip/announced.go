package gossip

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Announced announces a node's own records and keeps them, so that the next process of the node can
// withdraw those of endpoints that have ended meanwhile: a member does not receive its own records,
// and the others keep them while the member returns under its name. It is safe for concurrent use.
type Announced struct {
	member Member
	kv     core.KV

	mu        sync.Mutex // guards withdrawn; serializes changes of kv and of announcements
	withdrawn map[string]*time.Timer
}

// forgetAfter is how long a withdrawn record stays in the store. A member tells others of the withdrawal a little later,
// and never if it is killed before: then the next process withdraws the record once more.
const forgetAfter = 5 * time.Second

// NewAnnounced reads the records in kv. kv must be durable as long as this node's records are with
// the others.
func NewAnnounced(m Member, kv core.KV) *Announced {
	return &Announced{member: m, kv: kv, withdrawn: map[string]*time.Timer{}}
}

// announcedPrefix begins the keys in the store.
const announcedPrefix = "announced/"

// announcedKey is where a record is kept.
func announcedKey(id ID, table string) string {
	return announcedPrefix + id.Network + "/" + id.Endpoint + "/" + table
}

// parseAnnouncedKey is its inverse.
func parseAnnouncedKey(key string) (id ID, table string, ok bool) {
	part := strings.Split(strings.TrimPrefix(key, announcedPrefix), "/")
	if len(part) != 3 || part[2] != peerTable && part[2] != endpointTable {
		return ID{}, "", false
	}
	return ID{part[0], part[1]}, part[2], true
}

// Announce is Member.Announce of a record that is kept first. InvalidArgument for one that others would not
// take, which could not be read to be taken back either.
func (a *Announced) Announce(id ID, r Record) error {
	err := Check(r)
	if err == nil && (id.Network == "" || id.Endpoint == "" || strings.Contains(id.Network+id.Endpoint, "/")) {
		err = fmt.Errorf("endpoint %.64q of network %.64q: %w", id.Endpoint, id.Network, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	value, err := r.encode()
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stayLocked(announcedKey(id, r.table()))
	if err := a.kv.Put(announcedKey(id, r.table()), value); err != nil {
		return fmt.Errorf("announce: keep the record: %w", err)
	}
	return a.member.Announce(id, r)
}

// Withdraw takes both records of an endpoint back, its names first. It is idempotent.
func (a *Announced) Withdraw(id ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.withdrawLocked(id, endpointTable, peerTable)
}

// WithdrawNames withdraws the names of an endpoint, but not its location. It is idempotent.
func (a *Announced) WithdrawNames(id ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.withdrawLocked(id, endpointTable)
}

func (a *Announced) withdrawLocked(id ID, tables ...string) error {
	for _, table := range tables {
		key := announcedKey(id, table)
		if a.withdrawn[key] != nil {
			continue
		}
		value, err := a.kv.Get(key)
		if errdefs.IsNotFound(err) {
			continue
		}
		var r Record
		if err == nil {
			r, err = Decode(table, value)
		}
		if err == nil {
			err = a.member.Withdraw(id, r)
		}
		if err != nil && !errdefs.IsInvalidArgument(err) {
			return fmt.Errorf("withdraw endpoint %.12s: %w", id.Endpoint, err)
		}
		// One that cannot be read was announced by nobody: it is only forgotten.
		if err != nil {
			if err := a.forget(key); err != nil {
				return err
			}
			continue
		}
		a.forgetLaterLocked(key)
	}
	return nil
}

// Endpoints returns the endpoints with a record that this process or an earlier one has announced.
func (a *Announced) Endpoints() []ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.endpointsLocked()
}

func (a *Announced) endpointsLocked() []ID {
	var list []ID
	for key := range a.kv.All(announcedPrefix) {
		if id, _, ok := parseAnnouncedKey(key); ok && a.withdrawn[key] == nil && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}

// Sweep withdraws the records on a network, which is entered, of endpoints that are not to stay. A
// recovery calls it after announcing those that stay.
func (a *Announced) Sweep(network string, stays func(endpoint string) bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, id := range a.endpointsLocked() {
		if id.Network == network && !stays(id.Endpoint) {
			errs = append(errs, a.withdrawLocked(id, endpointTable, peerTable))
		}
	}
	return errors.Join(errs...)
}

// Exit is Member.Exit, and removes the network's stored records. A network with announcements of an
// earlier process must be entered before, or its records stay with the others.
func (a *Announced) Exit(network string) error {
	// Without the lock: it may take long, and changes on other networks must be announced meanwhile.
	if err := a.member.Exit(network); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.endpointsLocked() {
		if id.Network == network {
			a.forgetLaterLocked(announcedKey(id, endpointTable))
			a.forgetLaterLocked(announcedKey(id, peerTable))
		}
	}
	return nil
}

// forgetLaterLocked removes a record from the store when the others have received its withdrawal, unless it is
// announced again before.
func (a *Announced) forgetLaterLocked(key string) {
	a.stayLocked(key)
	var timer *time.Timer
	timer = time.AfterFunc(forgetAfter, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.withdrawn[key] != timer {
			return
		}
		delete(a.withdrawn, key)
		_ = a.forget(key) // it is taken back once more by the next process
	})
	a.withdrawn[key] = timer
}

// stayLocked undoes forgetLaterLocked.
func (a *Announced) stayLocked(key string) {
	if timer := a.withdrawn[key]; timer != nil {
		timer.Stop()
		delete(a.withdrawn, key)
	}
}

// forget removes a record from the store.
func (a *Announced) forget(key string) error {
	if err := a.kv.Delete(key); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("forget a record of the gossip: %w", err)
	}
	return nil
}
