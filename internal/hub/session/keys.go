package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
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

// Keys are those with which workers of Docker's make and protect networks of their own. The hub
// only passes them on.
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
		for range keysEach {
			k.ring.next()
		}
		return k, k.save(ctx, store.Absent)
	}
	if err != nil {
		return nil, err
	}
	k.rev = r.Rev
	if err := json.Unmarshal(r.Value, &k.ring); err != nil {
		return nil, fmt.Errorf("the networks' keys: %w: %w", errdefs.ErrDataLoss, err)
	}
	return k, nil
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
	if over := len(r.Keys) - 2*keysEach; over > 0 {
		r.Keys = r.Keys[over:]
	}
}

// save stores the keys. Preconditions: mu is held, or nobody else has k yet.
func (k *Keys) save(ctx context.Context, condition int64) error {
	data, err := json.Marshal(k.ring)
	if err != nil {
		return err
	}
	k.rev, err = k.store.Commit(ctx, store.Write{Key: keysRecord, Value: data, Secret: true, If: condition})
	return err
}

// Run rotates the keys until ctx ends.
func (k *Keys) Run(ctx context.Context) error {
	for {
		k.mu.Lock()
		wait := time.Until(k.ring.Rotated.Add(keysRotation))
		k.mu.Unlock()
		timer := time.NewTimer(max(wait, time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		if err := k.Rotate(ctx); err != nil {
			return err
		}
	}
}

// Rotate makes a new key for each subsystem, in place of the oldest.
func (k *Keys) Rotate(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ring.next()
	if err := k.save(ctx, k.rev); err != nil {
		return fmt.Errorf("rotate the networks' keys: %w", err)
	}
	close(k.changed)
	k.changed = make(chan struct{})
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
