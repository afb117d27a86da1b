package state

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

type scopeName struct {
	owner   core.Owner
	durable bool
}

// kv implements core.KV: read from memory, and written through to its entries.
type kv struct {
	name    string
	entries Entries // nil when in memory only

	mu    sync.RWMutex // guards items, queue; err is set before anybody else has the kv
	items map[string][]byte
	queue []*change // that no commit has taken yet
	err   error     // of loading the entries

	// commit serializes commits, each of which is synced: the changes of all waiting callers go
	// with the next one.
	commit sync.Mutex
}

// change is a change of a waiting caller. The holder of commit sets its result.
type change struct {
	Entry
	done bool
	err  error
}

// Scope returns a face's own key-value store.
func (s *Store) Scope(owner core.Owner, durable bool) core.KV {
	s.scopeMu.Lock()
	defer s.scopeMu.Unlock()
	name := scopeName{owner, durable}
	if d := s.scopes[name]; d != nil {
		return d
	}
	d := &kv{name: "scope/" + string(owner), items: map[string][]byte{}}
	if s.backing != nil {
		d.entries = s.backing.Entries(owner, durable)
		d.err = d.entries.Load(func(key string, value []byte) { d.items[key] = value })
	}
	s.scopes[name] = d
	return d
}

func (d *kv) Get(key string) ([]byte, error) {
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

func (d *kv) Put(key string, value []byte) error {
	if key == "" {
		return fmt.Errorf("put %s: empty key: %w", d.name, errdefs.ErrInvalidArgument)
	}
	return d.change(key, append([]byte{}, value...))
}

// Delete succeeds when there is nothing.
func (d *kv) Delete(key string) error { return d.change(key, nil) }

func (d *kv) change(key string, value []byte) error {
	if d.err != nil {
		return d.err
	}
	c := &change{Entry: Entry{key, value}}
	d.mu.Lock()
	d.queue = append(d.queue, c)
	d.mu.Unlock()
	d.commit.Lock()
	defer d.commit.Unlock()
	if c.done { // the last holder of commit has written it
		return c.err
	}
	d.mu.Lock()
	all := d.queue
	d.queue = nil
	d.mu.Unlock()
	err := d.write(all...)
	if err != nil && len(all) > 1 { // one of them may be why
		for _, o := range all {
			o.err = d.write(o)
		}
		err = c.err
	}
	for _, o := range all {
		o.done = true
	}
	return err
}

// write writes changes, all or none. Preconditions: commit is held.
func (d *kv) write(all ...*change) error {
	if d.entries != nil {
		list := make([]Entry, len(all))
		for i, c := range all {
			list[i] = c.Entry
		}
		if err := d.entries.Write(list); err != nil {
			return fmt.Errorf("write %s %q: %w", d.name, all[0].Key, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range all {
		if c.Value == nil {
			delete(d.items, c.Key)
		} else {
			d.items[c.Key] = c.Value
		}
	}
	return nil
}

// All yields the entries whose key starts with prefix, in the order of the keys, as of the time of
// the call.
func (d *kv) All(prefix string) iter.Seq2[string, []byte] {
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
