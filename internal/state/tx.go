package state

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// tx is one transaction. ch is nil in a View. Preconditions: s.mu is held.
type tx struct {
	s  *Store
	ch *changes
}

func (t *tx) Sandboxes() core.Table[core.Sandbox] { return table[core.Sandbox]{&t.s.sandboxes, t.ch} }

func (t *tx) Containers() core.Table[core.Container] {
	return table[core.Container]{&t.s.containers, t.ch}
}

// ContainersOf yields the containers of one sandbox, oldest first.
func (t *tx) ContainersOf(sandbox core.ID) iter.Seq[core.Container] {
	return func(yield func(core.Container) bool) {
		for v := range t.StoredOf(sandbox) {
			if !yield(t.s.containers.clone(*v)) {
				return
			}
		}
	}
}

// StoredOf yields the stored containers themselves.
func (t *tx) StoredOf(sandbox core.ID) iter.Seq[*core.Container] {
	k := &t.s.containers
	return func(yield func(*core.Container) bool) {
		for _, id := range slices.Clone(k.members[sandbox]) {
			if v := k.items[id]; v != nil && !yield(v) {
				return
			}
		}
	}
}

func (t *tx) LastSeq() uint64 { return t.s.events.last }

// Append gives the event the next Seq and stores it.
func (t *tx) Append(ev core.Event) (uint64, error) {
	if t.ch == nil {
		return 0, errReadOnly("append event")
	}
	ring := &t.s.events
	ev.Seq = ring.last + 1
	ev.At = ev.At.Round(0).UTC()
	raw, err := json.Marshal(ev)
	if err != nil {
		return 0, fmt.Errorf("append event: %w", err)
	}
	ring.push(raw, ev)
	t.ch.Events = append(t.ch.Events, Event{ev, raw})
	t.ch.undo(ring.pop)
	return ev.Seq, nil
}

// Events yields the events after since.
func (t *tx) Events(since uint64) iter.Seq2[core.Event, error] {
	return func(yield func(core.Event, error) bool) {
		ring := &t.s.events
		if since > ring.last {
			yield(core.Event{}, fmt.Errorf("events since %d: the last is %d: %w", since, ring.last, errdefs.ErrOutOfRange))
			return
		}
		if since < ring.last && since+1 < ring.first() {
			yield(core.Event{}, fmt.Errorf("events since %d: the oldest kept is %d: %w", since, ring.first(), errdefs.ErrOutOfRange))
			return
		}
		for i, raw := range ring.newer(since) {
			ev, err := ring.decode(since+1+uint64(i), raw)
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

func errReadOnly(op string) error {
	return fmt.Errorf("%s: in a view: %w", op, errdefs.ErrFailedPrecondition)
}

// eventRing is the end of the log, as JSON. Each reader gets its own copy of an event, decoded
// for it. The newest event has the Seq last.
type eventRing struct {
	raw   [][]byte
	last  uint64
	limit int
	// recent are the newest events, in order. All followers of the log read each of them soon.
	recent []core.Event
}

// maxRecent is how many recent events are kept before half of them are dropped.
const maxRecent = 64

func (r *eventRing) first() uint64 { return r.last - uint64(len(r.raw)) + 1 }

func (r *eventRing) push(raw []byte, ev core.Event) {
	if len(r.recent) == maxRecent {
		r.recent = r.recent[:copy(r.recent, r.recent[maxRecent/2:])]
	}
	r.raw, r.recent = append(r.raw, raw), append(r.recent, ev)
	r.last++
}

func (r *eventRing) pop() {
	r.raw = r.raw[:len(r.raw)-1]
	if n := len(r.recent); n > 0 {
		r.recent = r.recent[:n-1]
	}
	r.last--
}

// decode returns a copy of an event: of the recent one, if that shares nothing and survives JSON
// unchanged, or decoded from raw.
func (r *eventRing) decode(seq uint64, raw []byte) (ev core.Event, err error) {
	if back := r.last - seq; back < uint64(len(r.recent)) {
		if ev = r.recent[len(r.recent)-1-int(back)]; plain(&ev) {
			return ev, nil
		}
		ev = core.Event{}
	}
	return ev, json.Unmarshal(raw, &ev)
}

// plain reports whether an assignment copies all of ev, and all of it survives JSON, which replaces
// bytes that are not UTF-8.
func plain(ev *core.Event) bool {
	return ev.Autopsy == nil && utf8.ValidString(ev.Note) && utf8.ValidString(string(ev.Key)) && utf8.ValidString(string(ev.Owner)) &&
		utf8.ValidString(string(ev.Sandbox)) && utf8.ValidString(string(ev.Container)) && utf8.ValidString(string(ev.Process)) && utf8.ValidString(string(ev.Kind))
}

func (r *eventRing) newer(since uint64) [][]byte {
	if since >= r.last {
		return nil
	}
	return r.raw[len(r.raw)-int(r.last-since):]
}

// willTrimTo returns the Seq that will be the oldest after trim. Events are trimmed in steps of a
// sixteenth of the limit, so that not every commit deletes.
func (r *eventRing) willTrimTo() uint64 {
	if len(r.raw) <= r.limit+r.limit/16 {
		return r.first()
	}
	return r.last - uint64(r.limit) + 1
}

func (r *eventRing) trim() {
	n := int(r.willTrimTo() - r.first())
	if n > 0 {
		r.raw = slices.Clone(r.raw[n:])
	}
}

// kind holds the objects of one kind. Stored objects never change: Put replaces them, Get copies
// them.
type kind[T any] struct {
	name  string
	base  func(*T) *core.Meta
	items map[core.ID]*T
	keys  map[ownerKey]core.ID
	order []core.ID // by creation time
	clone func(T) T
	// group returns the sandbox of an object; members are the objects of each sandbox, by
	// creation time. It is nil for a kind that belongs to no sandbox.
	group   func(*T) core.ID
	members map[core.ID][]core.ID
	durable func(*T) bool // whether an object outlives a boot
}

type ownerKey struct {
	owner core.Owner
	key   core.Key
}

func newKind[T any](name string, base func(*T) *core.Meta, group func(*T) core.ID, durable func(*T) bool) kind[T] {
	return kind[T]{
		name: name, base: base, durable: durable, items: map[core.ID]*T{}, keys: map[ownerKey]core.ID{},
		clone: cloner[T](), group: group, members: map[core.ID][]core.ID{},
	}
}

func (k *kind[T]) set(v *T) {
	m := k.base(v)
	if old := k.items[m.ID]; old != nil {
		om := k.base(old)
		delete(k.keys, ownerKey{om.Owner, om.Key})
	} else {
		k.order = append(k.order, m.ID)
		k.join(m.ID, v)
	}
	k.items[m.ID] = v
	k.keys[ownerKey{m.Owner, m.Key}] = m.ID
}

// join and leave maintain the members of each sandbox. An object never changes its sandbox: one
// that is put again keeps its place.
func (k *kind[T]) join(id core.ID, v *T) {
	if k.group != nil {
		g := k.group(v)
		k.members[g] = append(k.members[g], id)
	}
}

func (k *kind[T]) leave(id core.ID, old *T) {
	if k.group == nil {
		return
	}
	g := k.group(old)
	k.members[g] = slices.DeleteFunc(k.members[g], func(m core.ID) bool { return m == id })
	if len(k.members[g]) == 0 {
		delete(k.members, g)
	}
}

func (k *kind[T]) unset(id core.ID) {
	old := k.items[id]
	if old == nil {
		return
	}
	m := k.base(old)
	delete(k.items, id)
	delete(k.keys, ownerKey{m.Owner, m.Key})
	k.leave(id, old)
	// From the back, because most objects live only for a short time.
	for i := len(k.order) - 1; i >= 0; i-- {
		if k.order[i] == id {
			k.order = slices.Delete(k.order, i, i+1)
			return
		}
	}
}

// restore sets id back to old, or removes it when old is nil. at is its place in the order.
func (k *kind[T]) restore(id core.ID, old *T, at int) {
	if old == nil {
		k.unset(id)
		return
	}
	if k.items[id] == nil {
		k.order = slices.Insert(k.order, min(at, len(k.order)), id)
		m := k.base(old)
		k.items[id] = old
		k.keys[ownerKey{m.Owner, m.Key}] = id
		k.rejoin(old)
		return
	}
	k.set(old)
}

// rejoin rebuilds the members of v's sandbox, by creation time.
func (k *kind[T]) rejoin(v *T) {
	if k.group == nil {
		return
	}
	g := k.group(v)
	var ids []core.ID
	for _, id := range k.order {
		if k.group(k.items[id]) == g {
			ids = append(ids, id)
		}
	}
	k.members[g] = ids
}

type table[T any] struct {
	k  *kind[T]
	ch *changes
}

func (t table[T]) Get(id core.ID) (T, error) {
	v, err := t.Peek(id)
	if err != nil {
		return *new(T), err
	}
	return t.k.clone(*v), nil
}

func (t table[T]) Peek(id core.ID) (*T, error) {
	v := t.k.items[id]
	if v == nil {
		return nil, fmt.Errorf("%s %s: %w", t.k.name, id, errdefs.ErrNotFound)
	}
	return v, nil
}

func (t table[T]) ByKey(owner core.Owner, key core.Key) (T, error) {
	id, ok := t.k.keys[ownerKey{owner, key}]
	if !ok {
		return *new(T), fmt.Errorf("%s %q of %s: %w", t.k.name, key, owner, errdefs.ErrNotFound)
	}
	return t.k.clone(*t.k.items[id]), nil
}

func (t table[T]) Put(v T) error {
	if t.ch == nil {
		return errReadOnly("put " + t.k.name)
	}
	c := t.k.clone(v)
	m := t.k.base(&c)
	if m.ID == "" || len(m.Key) > core.MaxKey {
		return fmt.Errorf("put %s: id and key: %w", t.k.name, errdefs.ErrInvalidArgument)
	}
	if other, ok := t.k.keys[ownerKey{m.Owner, m.Key}]; ok && other != m.ID {
		return fmt.Errorf("put %s %q of %s: %w", t.k.name, m.Key, m.Owner, errdefs.ErrAlreadyExists)
	}
	raw, err := json.Marshal(&c)
	if err != nil {
		return fmt.Errorf("put %s: %w", t.k.name, err)
	}
	old := t.k.items[m.ID]
	t.ch.undo(func() { t.k.restore(m.ID, old, 0) })
	t.k.set(&c)
	t.ch.put(Record{t.k.name, m.ID, raw, t.k.durable(&c)})
	return nil
}

func (t table[T]) Delete(id core.ID) error {
	if t.ch == nil {
		return errReadOnly("delete " + t.k.name)
	}
	old := t.k.items[id]
	if old == nil {
		return fmt.Errorf("delete %s %s: %w", t.k.name, id, errdefs.ErrNotFound)
	}
	at := slices.Index(t.k.order, id)
	t.ch.undo(func() { t.k.restore(id, old, at) })
	t.k.unset(id)
	t.ch.put(Record{t.k.name, id, nil, t.k.durable(old)})
	return nil
}

func (t table[T]) Stored(owner core.Owner) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, id := range slices.Clone(t.k.order) {
			if v := t.k.items[id]; v != nil && (owner == "" || t.k.base(v).Owner == owner) && !yield(v) {
				return
			}
		}
	}
}

func (t table[T]) All(owner core.Owner) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v := range t.Stored(owner) {
			if !yield(t.k.clone(*v), nil) {
				return
			}
		}
	}
}

// changes are the changes of one transaction or a group of them.
type changes struct {
	Changes
	back []func()
}

func (c *changes) put(r Record) { c.Records = append(c.Records, r) }

func (c *changes) undo(back func()) { c.back = append(c.back, back) }

func (c *changes) revert() {
	for i := len(c.back) - 1; i >= 0; i-- {
		c.back[i]()
	}
}

func (c *changes) merge(o *changes) {
	c.Records = append(c.Records, o.Records...)
	c.Events = append(c.Events, o.Events...)
	c.back = append(c.back, o.back...)
}

func (c *changes) empty() bool { return len(c.Records) == 0 && len(c.Events) == 0 }
