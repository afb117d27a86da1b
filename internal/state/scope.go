package state

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
)

type scopeName struct {
	owner   core.Owner
	durable bool
}

// drawer is one core.KV: read from memory, written through.
type drawer struct {
	name string
	db   *bbolt.DB    // nil in memory
	sync func() error // before a durable change; nil otherwise

	mu    sync.RWMutex
	items map[string][]byte
	err   error // of the first read
}

// Scope is a face's own drawer.
func (s *Store) Scope(owner core.Owner, durable bool) core.KV {
	s.scopeMu.Lock()
	defer s.scopeMu.Unlock()
	name := scopeName{owner, durable}
	if d := s.scopes[name]; d != nil {
		return d
	}
	d := &drawer{name: scopePrefix + string(owner), items: map[string][]byte{}}
	if s.files != nil {
		d.db = s.files.live
		if durable {
			d.db = s.files.durable
			// A cursor that a face saves must not outlive the events it
			// counts: the log reaches the disk first.
			d.sync = s.files.log.sync
		}
		d.err = d.load()
	}
	s.scopes[name] = d
	return d
}

func (d *drawer) load() error {
	return d.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(d.name))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			d.items[string(k)] = slices.Clone(v)
			return nil
		})
	})
}

func (d *drawer) Get(key string) ([]byte, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.err != nil {
		return nil, d.err
	}
	v, ok := d.items[key]
	if !ok {
		return nil, fmt.Errorf("%s %q: %w", d.name, key, errdefs.ErrNotFound)
	}
	return slices.Clone(v), nil
}

func (d *drawer) Put(key string, value []byte) error {
	if key == "" {
		return fmt.Errorf("put %s: empty key: %w", d.name, errdefs.ErrInvalidArgument)
	}
	return d.change(key, append([]byte{}, value...))
}

// Delete succeeds when there is nothing.
func (d *drawer) Delete(key string) error { return d.change(key, nil) }

func (d *drawer) change(key string, value []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if err := d.write(key, value); err != nil {
		return fmt.Errorf("write %s %q: %w", d.name, key, err)
	}
	if value == nil {
		delete(d.items, key)
	} else {
		d.items[key] = value
	}
	return nil
}

func (d *drawer) write(key string, value []byte) error {
	if d.db == nil {
		return nil
	}
	if d.sync != nil {
		if err := d.sync(); err != nil {
			return err
		}
	}
	return d.db.Update(func(tx *bbolt.Tx) error {
		if value != nil {
			return put(tx, d.name, []byte(key), value)
		}
		if b := tx.Bucket([]byte(d.name)); b != nil && key != "" {
			return b.Delete([]byte(key))
		}
		return nil
	})
}

// All yields the entries whose key starts with prefix, in the keys' order, as
// they are at the time of the call.
func (d *drawer) All(prefix string) iter.Seq2[string, []byte] {
	d.mu.RLock()
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(d.items)), func(k string) bool { return !strings.HasPrefix(k, prefix) })
	values := make([][]byte, len(keys))
	for i, k := range keys {
		values[i] = slices.Clone(d.items[k])
	}
	d.mu.RUnlock()
	return func(yield func(string, []byte) bool) {
		for i, k := range keys {
			if !yield(k, values[i]) {
				return
			}
		}
	}
}
