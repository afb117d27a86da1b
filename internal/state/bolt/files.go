package bolt

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/state"
)

// The buckets and keys of both databases. The bucket of an owner's key-value store is scopePrefix
// and the owner.
const (
	metaBucket   = "meta"
	eventsBucket = "events"
	scopePrefix  = "scope/"

	schemaKey      = "schema"
	lostObjectsKey = "remnants"
)

// files are the store's three files. It implements state.Backing.
type files struct {
	live, durable *dbfile.DB
	log           *eventLog
	records       *durableRecords // in durable
	logger        *slog.Logger
	fresh         bool // this process has created live.db: at a first start, or after a boot
	// lostObjects are the objects that existed before the boot and have not been ended since.
	// live.db has them too, so that a crash does not lose them.
	lostObjects census
}

// openFiles opens the durable files first: a newer schema there fails the start before anything
// is changed.
func openFiles(o Options) (*files, error) {
	f := &files{logger: o.Logger}
	var err error
	f.durable, err = openDB(o.durable())
	if err != nil {
		return nil, err
	}
	f.log, err = openLog(filepath.Join(o.Root, "events.log"), o.LogBytes, o.Logger)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.records = openRecords(f.durable, f.log.sync, o.Logger)
	f.fresh, err = dropOldBoot(o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.live, err = openDB(o.live())
	if err == nil && !f.fresh {
		// An agent that died in its first start after a boot has left a file without content.
		err = f.live.View(func(tx *bbolt.Tx) error {
			f.fresh = tx.Bucket([]byte(metaBucket)).Get([]byte(lostObjectsKey)) == nil
			return nil
		})
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// dropOldBoot deletes live records of another boot, which a state directory on a real disk would
// keep. After a boot they are as worthless as those on a tmpfs, and a power cut may have damaged
// them. It reports whether there are none now.
func dropOldBoot(o Options) (fresh bool, err error) {
	boot := o.BootID
	if boot == "" {
		if boot, err = bootID(); err != nil {
			return false, err
		}
	}
	boot = strings.TrimSpace(boot)
	mark, live := filepath.Join(o.State, "boot"), o.live().Path
	old, err := atomicfile.Read(mark, 4096)
	if errors.Is(err, atomicfile.ErrUnreadable) {
		old, err = []byte(err.Error()), os.RemoveAll(mark)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	// A damaged mark does not say that the records are of another boot. Should they be, then
	// recovery finds their processes gone.
	if was, sound := readMark(string(old)); sound && was != boot {
		if err := dbfile.Remove(live); err != nil {
			return false, err
		}
	} else if !sound && len(old) > 0 {
		o.Logger.Error("the file with the boot of the live records was damaged; it is written again, and nothing is lost", "file", mark)
	}
	exists, err := dbfile.Exists(live)
	if err != nil {
		return false, err
	}
	if now := boot + " " + markSum(boot) + "\n"; string(old) != now {
		if err := writeMark(mark, now, o.StateFull); err != nil {
			return false, err
		}
	}
	return !exists, nil
}

// writeMark replaces the mark of a boot.
func writeMark(mark, text string, full func() bool) error {
	err := atomicfile.Replace(mark, []byte(text), 0o600)
	if dbfile.IsFull(err) && full != nil && full() {
		err = atomicfile.Replace(mark, []byte(text), 0o600)
	}
	return err
}

func markSum(boot string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(boot), castagnoli()))
}

// readMark reads the mark of a boot. Before there were checksums it had the boot's ID alone.
func readMark(mark string) (boot string, sound bool) {
	part := strings.Fields(mark)
	switch len(part) {
	case 1:
		return part[0], mark == part[0]+"\n"
	case 2:
		return part[0], part[1] == markSum(part[0])
	}
	return "", false
}

// openDB opens a database, and gives a new one the present schema.
func openDB(o dbfile.Options) (*dbfile.DB, error) {
	version := ""
	o.Accept = func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(metaBucket)); b != nil {
			version = string(b.Get([]byte(schemaKey)))
		}
		if version == "" {
			return nil
		}
		return checkSchema(o.Path, version)
	}
	db, err := dbfile.Open(o)
	if err != nil || version != "" {
		return db, err
	}
	err = db.Update(func(tx *dbfile.Tx) error { return tx.Put(schemaKey, []byte(strconv.Itoa(Schema())), metaBucket) })
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func checkSchema(path, version string) error {
	n, err := strconv.Atoi(version)
	if err != nil || n < 1 {
		return fmt.Errorf("open %s: malformed schema %q: %w", path, version, errdefs.ErrDataLoss)
	}
	if n > Schema() {
		return fmt.Errorf("open %s: it has schema %d, this agent supports up to %d: %w", path, n, Schema(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (f *files) Close() error {
	var errs []error
	if f.records != nil {
		errs = append(errs, f.records.close())
	}
	if f.log != nil {
		errs = append(errs, f.log.close())
	}
	for _, db := range []*dbfile.DB{f.live, f.durable} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// load reads the files, with the newest limit events, and brings live.db and the event log to the
// same last event.
func (f *files) load(limit int) (c state.Contents, err error) {
	if f.fresh {
		return c, f.loadAfterBoot(&c, limit)
	}
	damaged := false
	err = f.live.View(func(tx *bbolt.Tx) (err error) {
		var errs [2]error
		c.Sandboxes, errs[0] = loadKind(tx, state.KindSandbox, func(v *core.Sandbox) time.Time { return v.Created })
		c.Containers, errs[1] = loadKind(tx, state.KindContainer, func(v *core.Container) time.Time { return v.Created })
		damaged = !f.loadEvents(tx, &c)
		return errors.Join(errs[0], errs[1], f.loadLostObjects(tx))
	})
	if err != nil {
		return c, err
	}
	for _, sb := range c.Sandboxes {
		f.log.census.addSandbox(sb)
	}
	for _, ct := range c.Containers {
		f.log.census.addContainer(ct)
	}
	if err := f.catchUp(&c); err != nil {
		return c, err
	}
	if damaged {
		f.logger.Error("events of the live records were damaged and are read from the event log; nothing is lost", "newest", f.log.last)
	}
	// The log is written after live.db, so it can only be behind, unless one of the two was
	// damaged or replaced.
	if damaged || f.log.last > c.Last {
		return c, f.importEvents(&c, limit, nil)
	}
	c.Trim(limit)
	if f.log.damaged > 0 && c.Last > 0 {
		f.log.rewrite(c.Events, c.Last)
		return c, nil
	}
	f.log.catchUp(c.Events, c.Last)
	return c, nil
}

// loadAfterBoot begins with the records of durable objects. It takes the events of the log; the
// objects that exist according to them become the lost objects.
func (f *files) loadAfterBoot(c *state.Contents, limit int) error {
	if err := f.log.readCensus(); err != nil {
		return err
	}
	f.lostObjects = maps.Clone(f.log.census)
	records, err := f.afterBoot(c)
	if err != nil {
		return err
	}
	maps.Copy(f.log.census, f.lostObjects)
	return f.importEvents(c, limit, records)
}

// importEvents replaces the events of live.db by those of the log, and adds records.
func (f *files) importEvents(c *state.Contents, limit int, records map[recordKey][]byte) error {
	raws, err := f.log.readEvents()
	if err != nil {
		return err
	}
	if len(raws) > limit {
		raws = raws[len(raws)-limit:]
	}
	c.Events, c.Last = raws, f.log.last
	return f.live.Update(func(tx *dbfile.Tx) error {
		if err := tx.Bolt().DeleteBucket([]byte(eventsBucket)); err != nil && !errors.Is(err, bbolt.ErrBucketNotFound) { //nolint:staticcheck // bbolt's own error
			return err
		}
		for k, raw := range records {
			if err := set(tx, k.kind, k.id, raw); err != nil {
				return err
			}
		}
		seq := c.Last - uint64(len(raws)) + 1
		for i, raw := range raws {
			if err := putEvent(tx, seq+uint64(i), raw); err != nil {
				return err
			}
		}
		return saveLostObjects(tx, f.lostObjects)
	})
}

func saveLostObjects(tx *dbfile.Tx, c census) error {
	raw, err := json.Marshal(c.list())
	if err != nil {
		return err
	}
	return tx.Put(lostObjectsKey, raw, metaBucket)
}

func (f *files) loadLostObjects(tx *bbolt.Tx) error {
	raw := tx.Bucket([]byte(metaBucket)).Get([]byte(lostObjectsKey))
	if raw == nil {
		return nil
	}
	var list []core.LostObject
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("lost objects: %w", err)
	}
	f.lostObjects = census{}
	for _, r := range list {
		f.log.census.add(r)
		f.lostObjects.add(r)
	}
	return nil
}

func loadKind[T any](tx *bbolt.Tx, kind string, created func(*T) time.Time) ([]*T, error) {
	b := tx.Bucket([]byte(kind))
	if b == nil {
		return nil, nil
	}
	var all []*T
	err := b.ForEach(func(id, raw []byte) error {
		v := new(T)
		if err := json.Unmarshal(raw, v); err != nil {
			return fmt.Errorf("%s %s: %w", kind, id, errors.Join(err, errdefs.ErrDataLoss))
		}
		all = append(all, v)
		return nil
	})
	slices.SortStableFunc(all, func(a, b *T) int { return created(a).Compare(created(b)) })
	return all, err
}

// loadEvents reads the events. It returns false when some are damaged: there is a gap, or one
// differs from the event log.
func (f *files) loadEvents(tx *bbolt.Tx, c *state.Contents) (sound bool) {
	b := tx.Bucket([]byte(eventsBucket))
	if b == nil {
		return true
	}
	sound = true
	_ = b.ForEach(func(k, raw []byte) error { // fn returns no error
		if len(k) != 8 || !sound {
			sound = false
			return nil
		}
		seq := binary.BigEndian.Uint64(k)
		if sum, ok := f.log.sums[seq]; ok && sum != lineSum(lineEvent, seq, raw) || len(c.Events) > 0 && seq != c.Last+1 {
			sound = false
			return nil
		}
		c.Events, c.Last = append(c.Events, slices.Clone(raw)), seq
		return nil
	})
	return sound
}

// Commit writes one group of changes: to live.db, then to the log.
func (f *files) Commit(ch state.Changes, oldest uint64) error {
	lost, fewer := f.lostObjects.after(ch.Events)
	err := f.live.Update(func(tx *dbfile.Tx) error {
		for _, r := range ch.Records {
			if err := set(tx, r.Kind, string(r.ID), r.JSON); err != nil {
				return err
			}
		}
		for _, e := range ch.Events {
			if err := putEvent(tx, e.Seq, e.JSON); err != nil {
				return err
			}
		}
		if fewer {
			if err := saveLostObjects(tx, lost); err != nil {
				return err
			}
		}
		return trimEvents(tx.Bolt(), oldest)
	})
	if err != nil {
		return err
	}
	f.lostObjects = lost
	for _, e := range ch.Events {
		f.log.census.apply(e.Event)
	}
	f.log.append(ch.Events)
	f.records.add(ch.Records) // after their events, which are synced first
	return nil
}

// maxTrim is how many events one commit deletes at most; the following ones delete more.
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

// putEvent stores an event. The event log is their copy.
func putEvent(tx *dbfile.Tx, seq uint64, raw []byte) error {
	b, err := tx.Bolt().CreateBucketIfNotExists([]byte(eventsBucket))
	if err != nil {
		return err
	}
	b.FillPercent = 1 // events are only appended
	return b.Put(seqKey(seq), raw)
}

// set stores a value; nil deletes it.
func set(tx *dbfile.Tx, bucket, key string, value []byte) error {
	if value == nil {
		return tx.Delete(key, bucket)
	}
	return tx.Put(key, value, bucket)
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// Sync implements state.Backing.
func (f *files) Sync() error { return f.records.sync() }

// LostObjects returns the objects that existed in an earlier boot according to the event log.
func (f *files) LostObjects() []core.LostObject { return f.lostObjects.list() }

// Entries returns the bucket of an owner's key-value store.
func (f *files) Entries(owner core.Owner, durable bool) state.Entries {
	d := bucket{name: scopePrefix + string(owner), db: f.live}
	if durable {
		d.db = f.durable
		// A cursor that a face stores must not outlive the events it counts, so the log is synced
		// first.
		d.sync = f.log.sync
	}
	return d
}

// bucket is the database bucket of one key-value store.
type bucket struct {
	name string
	db   *dbfile.DB
	sync func() error // called before a change; nil does nothing
}

// Load reads all entries.
func (d bucket) Load(fn func(key string, value []byte)) error {
	return d.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(d.name))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			fn(string(k), slices.Clone(v))
			return nil
		})
	})
}

// Write sets or deletes entries, in one transaction.
func (d bucket) Write(list []state.Entry) error {
	if d.sync != nil {
		if err := d.sync(); err != nil {
			return err
		}
	}
	return d.db.Update(func(tx *dbfile.Tx) error {
		for _, e := range list {
			if err := set(tx, d.name, e.Key, e.Value); err != nil {
				return err
			}
		}
		return nil
	})
}
