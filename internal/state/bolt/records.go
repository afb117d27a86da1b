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

// loop writes changes, at most once per syncEvery.
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
		if err := d.sync(); err != nil {
			d.logger.Error("could not write the records of durable containers; a boot now loses their newest states", "error", err)
			d.woken() // it tries again
		}
		timer.Reset(syncEvery)
		select {
		case <-d.stop:
			return
		case <-timer.C:
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

// catchUp notes the differences between the database and live.db, which an agent that was killed has
// left.
func (d *durableRecords) catchUp(live *dbfile.DB) error {
	stored, err := d.stored()
	if err != nil {
		return err
	}
	var list []state.Record
	err = live.View(func(tx *bbolt.Tx) error {
		for _, kind := range []string{state.KindSandbox, state.KindContainer} {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				continue
			}
			err := b.ForEach(func(id, raw []byte) error {
				k := recordKey{kind, string(id)}
				old, known := stored[k]
				delete(stored, k)
				if durable, err := isDurable(kind, raw); err != nil || !durable && !known || bytes.Equal(old, raw) {
					return err
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
	for k := range stored {
		list = append(list, state.Record{Kind: k.kind, ID: core.ID(k.id), Durable: true})
	}
	d.add(list)
	return err
}

func isDurable(kind string, raw []byte) (bool, error) {
	var v struct{ Config struct{ Durable bool } }
	if err := unmarshal(kind, raw, &v); err != nil {
		return false, err
	}
	return v.Config.Durable, nil
}

// afterBoot puts the records into the contents of the store, as they were before the boot, and returns
// them for live.db. With complete, lost has all objects that existed: a record without one is of an
// object that was removed, and is dropped. Otherwise lost gets the objects that it lacks. A container
// without its sandbox is dropped too.
func (d *durableRecords) afterBoot(c *state.Contents, lost census, complete bool) (map[recordKey][]byte, error) {
	err := d.db.View(func(tx *bbolt.Tx) error {
		var errs [2]error
		c.Sandboxes, errs[0] = loadKind(tx, state.KindSandbox, func(v *core.Sandbox) time.Time { return v.Created })
		c.Containers, errs[1] = loadKind(tx, state.KindContainer, func(v *core.Container) time.Time { return v.Created })
		return errors.Join(errs[:]...)
	})
	if err != nil {
		return nil, err
	}
	records, err := d.stored()
	if err != nil {
		return nil, err
	}
	drop := func(kind string, id core.ID) bool {
		delete(records, recordKey{kind, string(id)})
		d.add([]state.Record{{Kind: kind, ID: id, Durable: true}})
		return true
	}
	c.Sandboxes = slices.DeleteFunc(c.Sandboxes, func(sb *core.Sandbox) bool {
		if _, ok := lost[sb.ID]; ok {
			return false
		}
		if complete {
			return drop(state.KindSandbox, sb.ID)
		}
		lost.addSandbox(sb)
		return false
	})
	c.Containers = slices.DeleteFunc(c.Containers, func(ct *core.Container) bool {
		_, known := lost[ct.ID]
		if _, ok := records[recordKey{state.KindSandbox, string(ct.Sandbox)}]; !ok || !known && complete {
			d.logger.Info("the record of a durable container is left of its removal and is dropped", "container", ct.ID)
			return drop(state.KindContainer, ct.ID)
		}
		if !known {
			lost.addContainer(ct)
		}
		return false
	})
	return records, nil
}

func unmarshal(kind string, raw []byte, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", kind, errors.Join(err, errdefs.ErrDataLoss))
	}
	return nil
}
