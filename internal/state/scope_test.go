package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// slowDisk is a backing with writes that wait for the test. It takes no key "bad".
type slowDisk struct {
	Backing
	slowEntries
}

type slowEntries struct {
	began chan []string // the keys of a write
	goOn  chan struct{} // lets it end
}

// Entries implements Backing.
func (d slowDisk) Entries(core.Owner, bool) Entries { return d.slowEntries }

// Load implements Entries.
func (slowEntries) Load(func(string, []byte)) error { return nil }

// Write implements Entries.
func (e slowEntries) Write(list []Entry) error {
	var keys []string
	for _, entry := range list {
		keys = append(keys, entry.Key)
	}
	e.began <- keys
	<-e.goOn
	if slices.Contains(keys, "bad") {
		return errors.New("not this one")
	}
	return nil
}

// TestPutsAreWrittenTogether: while one is written, the others gather, and go with the next
// write. One that cannot be written fails alone.
func TestPutsAreWrittenTogether(t *testing.T) {
	disk := slowEntries{make(chan []string), make(chan struct{})}
	d, ok := New(0, Contents{}, slowDisk{slowEntries: disk}, nil).Scope(core.OwnerSwarm, true).(*kv)
	if !ok {
		t.Fatal("it is another kind of store")
	}
	type result struct {
		key string
		err error
	}
	results := make(chan result, 10)
	put := func(key string) { go func() { results <- result{key, d.Put(key, []byte(key))} }() }
	queued := func() int {
		d.mu.RLock()
		defer d.mu.RUnlock()
		return len(d.queue)
	}
	round := func(others ...string) {
		t.Helper()
		put("first")
		<-disk.began
		for _, key := range others {
			put(key)
		}
		roottest.Eventually(t, "all wait", func() bool { return queued() == len(others) })
		disk.goOn <- struct{}{}
		if keys := <-disk.began; len(keys) != len(others) {
			t.Errorf("written together are %q, want %q", keys, others)
		}
		disk.goOn <- struct{}{}
	}
	ends := func(n int, fails string) {
		t.Helper()
		for range n {
			r := <-results
			value, err := d.Get(r.key)
			switch {
			case (r.err != nil) != (r.key == fails):
				t.Errorf("%s: %v", r.key, r.err)
			case r.err != nil && !errdefs.IsNotFound(err):
				t.Errorf("%s is there: %v", r.key, err)
			case r.err == nil && (err != nil || string(value) != r.key):
				t.Errorf("%s is %q, %v", r.key, value, err)
			}
		}
	}
	var keys []string
	for i := range 8 {
		keys = append(keys, fmt.Sprint(i))
	}
	round(keys...)
	ends(1+len(keys), "")
	round("bad", "x", "y")
	for range 3 { // again, one by one
		if keys := <-disk.began; len(keys) != 1 {
			t.Errorf("tried again are %q", keys)
		}
		disk.goOn <- struct{}{}
	}
	ends(1+3, "bad")
}
