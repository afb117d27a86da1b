package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/store"
)

// keysRecord is where the keys are, sealed.
const keysRecord = "keys"

// How many keys each subsystem has, and how often one takes the place of the oldest.
const (
	keysEach     = 3
	keysRotation = 12 * time.Hour
)

// Keys are encryption keys for the networks of Docker's workers. The hub only passes them on.
type Keys struct {
	store *store.Store

	mu      sync.Mutex // guards ring, rev, changed
	ring    ring
	rev     int64
	changed chan struct{} // closed at the next change
}

// ring is the record.
type ring struct {
	Lamport uint64    `json:"lamport"` // of the last key
	Rotated time.Time `json:"rotated"`
	Keys    []key     `json:"keys"`
}

type key struct {
	Subsystem string `json:"subsystem"`
	Key       []byte `json:"key"`
	Lamport   uint64 `json:"lamport"`
}

// OpenKeys reads the keys of a store, or makes them.
func OpenKeys(ctx context.Context, s *store.Store) (*Keys, error) {
	k := &Keys{store: s, changed: make(chan struct{})}
	r, err := s.Get(ctx, keysRecord)
	if errdefs.IsNotFound(err) {
		made := ring{}
		for range keysEach {
			made.next()
		}
		if err = k.save(ctx, made, store.Absent); errdefs.IsAborted(err) { // another hub was first
			r, err = s.Get(ctx, keysRecord)
		} else {
			return k, err
		}
	}
	if err != nil {
		return nil, err
	}
	return k, k.take([]store.Record{r})
}

// take takes over the record.
func (k *Keys) take(records []store.Record) error {
	for _, r := range records {
		var now ring
		if err := json.Unmarshal(r.Value, &now); err != nil {
			return fmt.Errorf("the networks' keys: %w: %w", errdefs.ErrDataLoss, err)
		}
		k.set(now, r.Rev)
	}
	return nil
}

// set takes over keys, unless it has newer ones.
func (k *Keys) set(r ring, rev int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if rev <= k.rev {
		return
	}
	k.ring, k.rev = r, rev
	close(k.changed)
	k.changed = make(chan struct{})
}

// next adds a key for each subsystem, and drops the oldest ones.
func (r *ring) next() {
	r.Lamport++
	r.Rotated = time.Now()
	for _, subsystem := range []string{"networking:gossip", "networking:ipsec"} {
		b := make([]byte, 16)
		_, _ = rand.Read(b) // it never fails
		r.Keys = append(r.Keys, key{subsystem, b, r.Lamport})
	}
	if excess := len(r.Keys) - 2*keysEach; excess > 0 {
		r.Keys = r.Keys[excess:]
	}
}

// save stores keys.
func (k *Keys) save(ctx context.Context, r ring, condition int64) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev, err := k.store.Commit(ctx, store.Write{Key: keysRecord, Value: data, Secret: true, If: condition})
	if err != nil {
		return err
	}
	k.set(r, rev)
	return nil
}

// Run follows other hubs' changes, until ctx ends.
func (k *Keys) Run(ctx context.Context) error { return k.store.Follow(ctx, keysRecord, k.take) }

// Renew rotates the keys until ctx ends. One hub at a time does so.
func (k *Keys) Renew(ctx context.Context, log *slog.Logger) error {
	wait := time.Duration(0)
	for {
		k.mu.Lock()
		wait = max(wait, time.Until(k.ring.Rotated.Add(keysRotation)))
		k.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		wait = 0
		if err := k.Rotate(ctx); err != nil && ctx.Err() == nil {
			log.ErrorContext(ctx, "could not rotate the networks' keys; will try again", "error", err)
			wait = time.Minute
		}
	}
}

// Rotate makes a new key for each subsystem, in place of the oldest. Aborted when another hub does so at the same time.
func (k *Keys) Rotate(ctx context.Context) error {
	k.mu.Lock()
	r, rev := k.ring, k.rev
	k.mu.Unlock()
	r.Keys = slices.Clone(r.Keys)
	r.next()
	if err := k.save(ctx, r, rev); err != nil {
		return fmt.Errorf("rotate the networks' keys: %w", err)
	}
	return nil
}

// Changed is closed at the next rotation.
func (k *Keys) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// List is the keys as nodes get them.
func (k *Keys) List() (list []*swarmv1.EncryptionKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.ring.Keys {
		list = append(list, &swarmv1.EncryptionKey{Subsystem: e.Subsystem, Algorithm: swarmv1.EncryptionKey_AES_128_GCM, Key: e.Key, LamportTime: e.Lamport})
	}
	return list
}
