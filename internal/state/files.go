package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
)

// The buckets and keys of both databases. A drawer's bucket is scopePrefix and
// the owner.
const (
	metaBucket   = "meta"
	eventsBucket = "events"
	scopePrefix  = "scope/"

	schemaKey   = "schema"
	remnantsKey = "remnants"
)

// files are a store's three.
type files struct {
	live, durable *bbolt.DB
	log           *eventLog
	logger        *slog.Logger
	fresh         bool // live was made by this process: a first start, or a boot
	// remnants are what lived before the boot and has not been ended since;
	// live.db keeps them, so that a crash before that does not lose them.
	remnants census
}

// openFiles opens the durable files first: a newer schema there refuses the
// start before anything is touched.
func openFiles(o Options) (*files, error) {
	f := &files{logger: o.Logger}
	var err error
	f.durable, err = openDB(inDir(o.Root, "durable.db"), false)
	if err != nil {
		return nil, err
	}
	f.log, err = openLog(inDir(o.Root, "events.log"), o.LogBytes, o.Logger)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.fresh, err = dropOldBoot(o)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.live, err = openDB(inDir(o.State, "live.db"), true)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// dropOldBoot removes live records of another boot, which a state directory on
// a real disk would keep: they are not worth more than a tmpfs's after a boot,
// and a power cut may have torn them. It reports whether there are none now.
func dropOldBoot(o Options) (fresh bool, err error) {
	boot := o.BootID
	if boot == "" {
		if boot, err = bootID(); err != nil {
			return false, err
		}
	}
	boot = strings.TrimSpace(boot)
	mark, live := inDir(o.State, "boot"), inDir(o.State, "live.db")
	if old, err := os.ReadFile(mark); err == nil && strings.TrimSpace(string(old)) == boot {
		_, err := os.Stat(live)
		return errors.Is(err, fs.ErrNotExist), nil
	}
	if err := os.Remove(live); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, os.WriteFile(mark, []byte(boot+"\n"), 0o600)
}

// openDB opens one database and checks its schema; a new one gets ours.
func openDB(path string, volatile bool) (*bbolt.DB, error) {
	opts := *bbolt.DefaultOptions
	opts.Timeout = time.Second
	opts.FreelistType = bbolt.FreelistMapType
	opts.NoFreelistSync = true // rebuilt when opened; files are small
	opts.NoSync, opts.NoGrowSync = volatile, volatile
	db, err := bbolt.Open(path, 0o600, &opts)
	if errors.Is(err, bbolt.ErrTimeout) { //nolint:staticcheck // the package's own name for it
		return nil, fmt.Errorf("open %s: another agent holds it: %w", path, errdefs.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	version := ""
	err = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(metaBucket)); b != nil {
			version = string(b.Get([]byte(schemaKey)))
		}
		return nil
	})
	if err == nil && version == "" {
		err = db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(schemaKey), []byte(strconv.Itoa(Schema)))
		})
	} else if err == nil {
		err = checkSchema(path, version)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func checkSchema(path, version string) error {
	n, err := strconv.Atoi(version)
	if err != nil || n < 1 {
		return fmt.Errorf("open %s: schema %q: %w", path, version, errdefs.ErrDataLoss)
	}
	if n > Schema {
		return fmt.Errorf("open %s: it has schema %d, this agent knows up to %d: %w", path, n, Schema, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (f *files) close() error {
	var errs []error
	if f.log != nil {
		errs = append(errs, f.log.close())
	}
	for _, db := range []*bbolt.DB{f.live, f.durable} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// load fills s from the files and brings live.db and the event log to the same
// last event.
func (f *files) load(s *Store) error {
	if f.fresh {
		return f.loadAfterBoot(s)
	}
	err := f.live.View(func(tx *bbolt.Tx) error {
		return errors.Join(
			loadKind(tx, &s.sandboxes, func(v core.Sandbox) time.Time { return v.Created }),
			loadKind(tx, &s.containers, func(v core.Container) time.Time { return v.Created }),
			loadEvents(tx, &s.events),
			f.loadRemnants(tx))
	})
	if err != nil {
		return err
	}
	for _, sb := range s.sandboxes.items {
		f.log.census.addSandbox(sb)
	}
	for _, c := range s.containers.items {
		f.log.census.addContainer(c)
	}
	// The log is written after live.db: it can only be behind, unless
	// somebody exchanged one of the two.
	if f.log.last > s.events.last {
		return f.importEvents(s)
	}
	s.events.trim()
	return f.log.catchUp(s.events.raw, s.events.last)
}

// loadAfterBoot starts with no records; the log's events are taken over, and
// what they say was alive become the remnants.
func (f *files) loadAfterBoot(s *Store) error {
	if err := f.log.readCensus(); err != nil {
		return err
	}
	f.remnants = maps.Clone(f.log.census)
	return f.importEvents(s)
}

func (f *files) importEvents(s *Store) error {
	raws, err := f.log.readEvents()
	if err != nil {
		return err
	}
	if len(raws) > s.events.limit {
		raws = raws[len(raws)-s.events.limit:]
	}
	s.events.raw, s.events.last = raws, f.log.last
	return f.live.Update(func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket([]byte(eventsBucket)); err != nil && !errors.Is(err, bbolt.ErrBucketNotFound) { //nolint:staticcheck // the package's own name
			return err
		}
		seq := s.events.first()
		for i, raw := range raws {
			if err := put(tx, eventsBucket, seqKey(seq+uint64(i)), raw); err != nil {
				return err
			}
		}
		return saveRemnants(tx, f.remnants)
	})
}

func saveRemnants(tx *bbolt.Tx, c census) error {
	raw, err := json.Marshal(c.list())
	if err != nil {
		return err
	}
	return put(tx, metaBucket, []byte(remnantsKey), raw)
}

func (f *files) loadRemnants(tx *bbolt.Tx) error {
	raw := tx.Bucket([]byte(metaBucket)).Get([]byte(remnantsKey))
	if raw == nil {
		return nil
	}
	var list []core.Remnant
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("remnants: %w", err)
	}
	f.remnants = census{}
	for _, r := range list {
		f.log.census.add(r)
		f.remnants.add(r)
	}
	return nil
}

func loadKind[T any](tx *bbolt.Tx, k *kind[T], created func(T) time.Time) error {
	b := tx.Bucket([]byte(k.name))
	if b == nil {
		return nil
	}
	var all []*T
	err := b.ForEach(func(id, raw []byte) error {
		v := new(T)
		if err := json.Unmarshal(raw, v); err != nil {
			return fmt.Errorf("%s %s: %w", k.name, id, errors.Join(err, errdefs.ErrDataLoss))
		}
		all = append(all, v)
		return nil
	})
	slices.SortStableFunc(all, func(a, b *T) int { return created(*a).Compare(created(*b)) })
	for _, v := range all {
		k.set(v)
	}
	return err
}

func loadEvents(tx *bbolt.Tx, ring *eventRing) error {
	b := tx.Bucket([]byte(eventsBucket))
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, raw []byte) error {
		seq := binary.BigEndian.Uint64(k)
		if len(ring.raw) > 0 && seq != ring.last+1 {
			return fmt.Errorf("events: %d follows %d: %w", seq, ring.last, errdefs.ErrDataLoss)
		}
		ring.raw, ring.last = append(ring.raw, slices.Clone(raw)), seq
		return nil
	})
}

// commit writes one group of changes: live.db, then the log.
func (f *files) commit(ch *changes, oldest uint64) error {
	remnants, fewer := f.remnants.after(ch.events)
	err := f.live.Update(func(tx *bbolt.Tx) error {
		for _, r := range ch.records {
			if r.raw == nil {
				if b := tx.Bucket([]byte(r.kind)); b != nil {
					if err := b.Delete([]byte(r.id)); err != nil {
						return err
					}
				}
			} else if err := put(tx, r.kind, []byte(r.id), r.raw); err != nil {
				return err
			}
		}
		for _, e := range ch.events {
			if err := put(tx, eventsBucket, seqKey(e.ev.Seq), e.raw); err != nil {
				return err
			}
		}
		if fewer {
			if err := saveRemnants(tx, remnants); err != nil {
				return err
			}
		}
		return trimEvents(tx, oldest)
	})
	if err != nil {
		return err
	}
	f.remnants = remnants
	for _, e := range ch.events {
		f.log.census.apply(e.ev)
	}
	f.log.append(ch.events)
	return nil
}

// maxTrim bounds what one commit deletes; the next ones go on.
const maxTrim = 256

func trimEvents(tx *bbolt.Tx, oldest uint64) error {
	b := tx.Bucket([]byte(eventsBucket))
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for range maxTrim {
		k, _ := c.First()
		if k == nil || binary.BigEndian.Uint64(k) >= oldest {
			break
		}
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func put(tx *bbolt.Tx, bucket string, key, value []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	if bucket == eventsBucket {
		b.FillPercent = 1 // only ever appended to
	}
	return b.Put(key, value)
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
