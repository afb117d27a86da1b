package bolt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/state"
)

// recordKey names a record.
type recordKey struct{ kind, id string }

// durableRecords are the records of durable objects, in durable.db. live.db has them too, and is right
// as long as it exists. A change is written here later than there: when somebody asks for it, or after a
// second. So the states of a container that restarts again and again do not cost a sync each.
type durableRecords struct {
	db     *dbfile.DB
	logged func() error // syncs the event log. A record must not outlive its events.
	logger *slog.Logger

	writing sync.Mutex // serializes sync. Lock order: writing, then mu.
	mu      sync.Mutex // guards dirty
	dirty   map[recordKey][]byte
	wake    chan struct{} // has one value when something is dirty
	stop    chan struct{}
	ended   chan struct{}
}

// openRecords returns the durable records of db, and writes changes until close.
func openRecords(db *dbfile.DB, logged func() error, logger *slog.Logger) *durableRecords {
	d := &durableRecords{
		db: db, logged: logged, logger: logger, dirty: map[recordKey][]byte{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go d.loop()
	return d
}

// loop writes changes a second after the first one. An earlier write would
// delay a caller of Sync.
func (d *durableRecords) loop() {
	defer close(d.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-d.wake:
		}
		timer.Reset(syncEvery)
		select {
		case <-d.stop:
			return
		case <-timer.C:
		}
		if err := d.sync(); err != nil {
			d.logger.Error("could not write the records of durable containers; a boot now loses their newest states", "error", err)
			d.woken() // it tries again
		}
	}
}

func (d *durableRecords) woken() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// add notes the durable ones of some changed records.
func (d *durableRecords) add(list []state.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range list {
		if r.Durable {
			d.dirty[recordKey{r.Kind, string(r.ID)}] = r.JSON
			d.woken()
		}
	}
}

// sync writes all noted changes, in one transaction. When another call writes them already, it waits
// for that one.
func (d *durableRecords) sync() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.Lock()
	dirty := d.dirty
	d.dirty = map[recordKey][]byte{}
	d.mu.Unlock()
	if len(dirty) == 0 {
		return nil
	}
	err := d.logged()
	if err == nil {
		err = d.db.Update(func(tx *dbfile.Tx) error {
			for k, raw := range dirty {
				if err := set(tx, k.kind, k.id, raw); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(dirty, d.dirty) // the newer ones stay
	d.dirty = dirty
	return err
}

// close writes all changes. The database stays open.
func (d *durableRecords) close() error {
	close(d.stop)
	<-d.ended
	return d.sync()
}

// stored returns the records of the database.
func (d *durableRecords) stored() (map[recordKey][]byte, error) {
	all := map[recordKey][]byte{}
	err := d.db.View(func(tx *bbolt.Tx) error {
		for _, kind := range []string{state.KindSandbox, state.KindContainer} {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				continue
			}
			err := b.ForEach(func(id, raw []byte) error {
				all[recordKey{kind, string(id)}] = slices.Clone(raw)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// catchUp notes the differences between durable.db and live.db, which an agent that was killed has left.
// A record that is in durable.db alone was deleted if the event log says so. Otherwise live.db has lost
// it to damage: it is taken back, as after a boot.
func (f *files) catchUp(c *state.Contents) error {
	stored, err := f.records.stored()
	if err != nil {
		return err
	}
	durable := map[recordKey]bool{}
	for _, sb := range c.Sandboxes {
		durable[recordKey{state.KindSandbox, string(sb.ID)}] = sb.Config.Durable
	}
	for _, ct := range c.Containers {
		durable[recordKey{state.KindContainer, string(ct.ID)}] = ct.Config.Durable
	}
	var list []state.Record
	err = f.live.View(func(tx *bbolt.Tx) error {
		for _, kind := range []string{state.KindSandbox, state.KindContainer} {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				continue
			}
			err := b.ForEach(func(id, raw []byte) error {
				k := recordKey{kind, string(id)}
				old, known := stored[k]
				delete(stored, k)
				if !durable[k] && !known || bytes.Equal(old, raw) {
					return nil
				}
				list = append(list, state.Record{Kind: kind, ID: core.ID(id), JSON: slices.Clone(raw), Durable: true})
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.records.add(list)
	if len(stored) == 0 {
		return nil
	}
	back, err := f.takeBack(c, stored)
	if err != nil || len(back) == 0 {
		return err
	}
	return f.live.Update(func(tx *dbfile.Tx) error {
		for k, raw := range back {
			if err := set(tx, k.kind, k.id, raw); err != nil {
				return err
			}
		}
		return saveLostObjects(tx, f.lostObjects)
	})
}

// afterBoot puts the records of durable.db into the contents of the store, as they were before the boot,
// and returns them for live.db.
func (f *files) afterBoot(c *state.Contents) (map[recordKey][]byte, error) {
	stored, err := f.records.stored()
	if err != nil || len(stored) == 0 {
		return nil, err
	}
	return f.takeBack(c, stored)
}

// takeBack adds records to the contents of the store and to the lost objects, and returns them. It drops
// those that the event log knows as removed, and containers without their sandbox.
func (f *files) takeBack(c *state.Contents, stored map[recordKey][]byte) (map[recordKey][]byte, error) {
	removed, err := f.removed()
	if err != nil {
		return nil, err
	}
	back := maps.Clone(stored)
	drop := func(k recordKey) {
		f.logger.Info("a record is left of a removal and is dropped", "kind", k.kind, "object", k.id)
		delete(back, k)
		f.records.add([]state.Record{{Kind: k.kind, ID: core.ID(k.id), Durable: true}})
	}
	for k := range stored {
		if removed[core.ID(k.id)] {
			drop(k)
		}
	}
	if f.lostObjects == nil {
		f.lostObjects = census{}
	}
	for k, raw := range back {
		if k.kind != state.KindSandbox {
			continue
		}
		sb := new(core.Sandbox)
		if err := unmarshal(k.kind, raw, sb); err != nil {
			return nil, err
		}
		c.Sandboxes = append(c.Sandboxes, sb)
		if _, ok := f.lostObjects[sb.ID]; !ok {
			f.lostObjects.addSandbox(sb)
		}
	}
	for k, raw := range maps.Clone(back) {
		if k.kind != state.KindContainer {
			continue
		}
		ct := new(core.Container)
		if err := unmarshal(k.kind, raw, ct); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(c.Sandboxes, func(sb *core.Sandbox) bool { return sb.ID == ct.Sandbox }) {
			drop(k)
			continue
		}
		c.Containers = append(c.Containers, ct)
		if _, ok := f.lostObjects[ct.ID]; !ok {
			f.lostObjects.addContainer(ct)
		}
	}
	slices.SortStableFunc(c.Sandboxes, func(a, b *core.Sandbox) int { return a.Created.Compare(b.Created) })
	slices.SortStableFunc(c.Containers, func(a, b *core.Container) int { return a.Created.Compare(b.Created) })
	return back, nil
}

// removed returns the objects that were removed according to the event log.
func (f *files) removed() (map[core.ID]bool, error) {
	raws, err := f.log.readEvents()
	if err != nil {
		return nil, err
	}
	gone := map[core.ID]bool{}
	for _, raw := range raws {
		if !bytes.Contains(raw, []byte(".removed")) {
			continue
		}
		var ev core.Event
		if err := json.Unmarshal(raw, &ev); err != nil {
			continue // a damaged line says nothing
		}
		switch ev.Kind {
		case core.EventSandboxRemoved:
			gone[ev.Sandbox] = true
		case core.EventContainerRemoved:
			gone[ev.Container] = true
		default:
		}
	}
	return gone, nil
}

func unmarshal(kind string, raw []byte, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", kind, errors.Join(err, errdefs.ErrDataLoss))
	}
	return nil
}
