// Package dbfile opens bbolt files so that a damaged one neither crashes the process nor loses its
// content. A bbolt file has no checksums and is mapped into memory: a flipped bit changes a record
// unseen, or makes bbolt panic, and a truncated file ends the process with SIGBUS. So each file is
// read page by page before it is mapped, and everything in it is also in a second file beside it,
// PATH.copy, in frames with checksums. A file that is damaged, or differs from its copy, is renamed
// to PATH.damaged and made again from the copy.
//
// It does not know the meaning of the entries. Start at Open; pages.go reads bbolt's pages, copy.go
// is the copy, repair.go is for files with a damaged copy.
package dbfile

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
)

const (
	newSuffix     = ".new"
	damagedSuffix = atomicfile.Damaged
)

// Options are the parameters of Open and Repair.
type Options struct {
	Path string
	// Volatile files are never synced.
	Volatile bool
	// Skip reports whether an outermost bucket is not copied. Its content is lost with the file.
	// nil skips none.
	Skip func(bucket string) bool
	// Accept is called before any change and may refuse a file of a newer schema. May be nil.
	Accept func(tx *bbolt.Tx) error
	// Valid reports whether the owner of an entry can read it; bucket are the names from the
	// outermost on. May be nil.
	Valid func(bucket []string, key, value []byte) bool
	// Useless reports whether an entry is worth nothing when it may be outdated. May be nil.
	Useless func(bucket []string, value []byte) bool
	// Orphan reports whether an entry is useless because another one is missing; has reports whether
	// an entry exists. May be nil.
	Orphan func(has func(key string, bucket ...string) bool, bucket []string, value []byte) bool
	// Full is called when a transaction finds the disk full, and reports whether it has freed
	// space; the transaction is then tried once more. May be nil.
	Full func() bool
	// Loss describes, for people, what a node loses with this file.
	Loss   string
	Logger *slog.Logger // may be nil
}

func (o *Options) skip(bucket string) bool { return o.Skip != nil && o.Skip(bucket) }

func (o *Options) log() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

// DB is an open file with its copy.
type DB struct {
	bolt *bbolt.DB
	o    Options

	mu     sync.Mutex // guards frame; serializes transactions that write, so that the copy has them in their order
	frame  []byte     // the space of the last transaction's frame, for the next one
	copy   copyFile
	behind bool // the copy lacks transactions, because it could not be written
}

// Open opens or creates a file. One that is damaged is made again from its copy; if that is damaged
// too, Open fails with DataLoss and advice. A file that another process has open is Unavailable.
func Open(o Options) (*DB, error) {
	_, err := os.Stat(o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = o.create()
	}
	if err != nil && atomicfile.Strange(o.Path) == "" {
		return nil, fmt.Errorf("open %s: %w", o.Path, err)
	}
	db, err := o.open()
	if !errdefs.IsDataLoss(err) {
		return db, err
	}
	damage := err
	c, err := readCopy(o.Path + copySuffix)
	if err != nil || !c.whole {
		return nil, fmt.Errorf("open %s: it is damaged: %w, and %s: run `longshore repair`, which brings back what can still be read; without this file %s", o.Path, damage, o.copyTrouble(err), o.Loss)
	}
	if err := o.replace(c.content); err != nil {
		return nil, fmt.Errorf("open %s: it is damaged (%w), and could not be made again: %w", o.Path, damage, err)
	}
	o.log().Error("a file was damaged and was made again from its copy; nothing is lost. Check the disk", "file", o.Path, "damage", damage, "kept", o.Path+damagedSuffix)
	if db, err = o.open(); err != nil {
		return nil, fmt.Errorf("open %s, made again from its copy: %w", o.Path, err)
	}
	return db, nil
}

func (o *Options) copyTrouble(err error) string {
	if err != nil {
		return err.Error()
	}
	if _, err := os.Stat(o.Path + copySuffix); err != nil {
		return "it has no copy"
	}
	return filepath.Base(o.Path) + copySuffix + " is damaged too"
}

// create makes the file, with the content of its copy, if there is one. It gets its name when it is
// complete, so that an empty file is always a damaged one.
func (o *Options) create() error {
	c, err := readCopy(o.Path + copySuffix)
	if err != nil {
		return err
	}
	if c.some && !c.whole {
		return fmt.Errorf("it is gone, and its copy is damaged: run `longshore repair`, which brings back what can still be read; without this file %s: %w", o.Loss, errdefs.ErrDataLoss)
	}
	if c.some {
		o.log().Error("a file was gone and was made again from its copy; nothing is lost", "file", o.Path)
	}
	return o.replace(c.content)
}

// replace puts the file aside and makes one with this content.
func (o *Options) replace(c content) error {
	fresh := o.Path + newSuffix
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	db, err := bbolt.Open(fresh, 0o600, o.bolt(nil))
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		t := Tx{tx: tx, skip: o.skip}
		for bucket, n := range c.sequences {
			b, err := t.bucket(bucket)
			if err != nil {
				return err
			}
			if err := b.SetSequence(n); err != nil {
				return err
			}
		}
		for s, v := range c.values {
			b, err := t.bucket(s.bucket)
			if err != nil {
				return err
			}
			if err := b.Put([]byte(s.key), v); err != nil {
				return err
			}
		}
		return nil
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	// At every moment the old or the new file has the name. The old copy's transactions have other
	// numbers than the new file's: without a copy Open writes one.
	keep := func() error { return os.Link(o.Path, o.Path+damagedSuffix) }
	if atomicfile.Strange(o.Path) != "" { // it cannot be linked, nor be replaced by a file
		keep = func() error { return atomicfile.SetAside(o.Path) }
	}
	for _, step := range []func() error{
		func() error { return os.RemoveAll(o.Path + damagedSuffix) },
		keep,
		func() error { return os.Rename(fresh, o.Path) },
		func() error { return atomicfile.SetAside(o.Path + copySuffix) },
	} {
		if err := step(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if o.Volatile {
		return nil
	}
	dir, err := os.Open(filepath.Dir(o.Path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (o *Options) bolt(open func(string, int, os.FileMode) (*os.File, error)) *bbolt.Options {
	b := *bbolt.DefaultOptions
	b.Timeout = time.Second
	b.FreelistType = bbolt.FreelistMapType
	b.NoFreelistSync = true // it is rebuilt when the file is opened, and files are small
	b.NoSync, b.NoGrowSync = o.Volatile, o.Volatile
	b.OpenFile = open
	return &b
}

// open opens the file after it has been read page by page, compares it with its copy, and rewrites
// the copy if they differ. DataLoss means that the file is damaged.
func (o *Options) open() (*DB, error) {
	var held content
	db := &DB{o: *o, copy: copyFile{path: o.Path + copySuffix}}
	if strange := atomicfile.Strange(o.Path); strange != "" {
		return nil, fmt.Errorf("it is %s: %w", strange, errdefs.ErrDataLoss)
	}
	err := guard(func() (err error) {
		db.bolt, err = bbolt.Open(o.Path, 0o600, o.bolt(func(path string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
			if err != nil {
				return nil, err
			}
			// bbolt locks this open file again, which does nothing then.
			if err := lock(f); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			if held, _, err = readTree(path, o.skip, nil); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		}))
		return err
	})
	if err != nil {
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("open %s: another agent has it open: %w", o.Path, errdefs.ErrUnavailable)
		}
		return nil, err
	}
	if err := guard(func() error { return db.settle(held) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// settle brings file and copy to the same content.
func (d *DB) settle(held content) error {
	var txid uint64
	if err := d.bolt.View(func(tx *bbolt.Tx) error { txid = uint64(tx.ID()); return nil }); err != nil {
		return err
	}
	c, err := readCopy(d.copy.path)
	if err != nil {
		return err
	}
	switch {
	case !c.whole:
		for s, v := range held.values {
			if d.o.Valid != nil && !d.o.Valid(names(s.bucket), []byte(s.key), v) {
				return fmt.Errorf("%q of %q cannot be read: %w", s.key, names(s.bucket), errdefs.ErrDataLoss)
			}
		}
	case c.txid > txid:
		return fmt.Errorf("it ends with transaction %d and its copy with %d: %w", txid, c.txid, errdefs.ErrDataLoss)
	case c.txid == txid:
		// Otherwise the agent was killed before it wrote the copy, or one that keeps no copies
		// has used the file.
		if at := held.differs(c.content); at != "" {
			return fmt.Errorf("%s is not what its copy says: %w", at, errdefs.ErrDataLoss)
		}
	}
	if d.o.Accept != nil {
		if err := d.bolt.View(d.o.Accept); err != nil {
			return err
		}
	}
	if c.some && !c.whole {
		d.o.log().Error("a file's copy was damaged; it is written again, and nothing is lost. Check the disk", "file", d.copy.path)
	}
	if c.whole && c.txid == txid && d.copy.resume(&c) {
		return nil
	}
	// A node must start on a full disk: its user frees space with the node's own commands. The
	// copy can wait, and leaves the reserve to transactions.
	d.copied(d.copy.write(held, txid))
	return nil
}

var errLocked = errors.New("the file is locked")

// lock locks an open file as bbolt does, and waits a second for another process.
func lock(f *os.File) error {
	tries := time.NewTicker(50 * time.Millisecond)
	defer tries.Stop()
	for range 20 {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		<-tries.C
	}
	return errLocked
}

// guard calls fn and turns a panic of bbolt, or the fault of a mapped page that cannot be read,
// into DataLoss.
func guard(fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = fmt.Errorf("%v: %w", p, errdefs.ErrDataLoss)
		}
	}()
	return fn()
}

// Close closes the file.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.copy.close()
	return d.bolt.Close()
}

// View reads in one transaction.
func (d *DB) View(fn func(tx *bbolt.Tx) error) error {
	return d.named(guard(func() error { return d.bolt.View(fn) }))
}

func (d *DB) named(err error) error {
	if errdefs.IsDataLoss(err) {
		return fmt.Errorf("%s: %w", d.o.Path, err)
	}
	return err
}

// Update writes in one transaction, to the file and then to its copy. On a full disk fn may be
// called twice; nothing of the first call is kept.
func (d *DB) Update(fn func(tx *Tx) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t Tx
	var txid uint64
	frame := d.frame
	update := func() error {
		return d.bolt.Update(func(tx *bbolt.Tx) error {
			txid = uint64(tx.ID())
			t = Tx{tx: tx, skip: d.o.skip, done: newFrame(frame, txid)}
			return fn(&t)
		})
	}
	err := guard(update)
	if IsFull(err) && d.o.Full != nil && d.o.Full() {
		d.o.log().Warn("the disk is full; released the space that was reserved for this case", "file", d.o.Path)
		err = guard(update)
	}
	if err != nil {
		return d.named(err)
	}
	d.copied(d.copyLocked(txid, t.done))
	return nil
}

// copied records whether the copy was written. Preconditions: mu is held, or nobody else has d.
func (d *DB) copied(err error) {
	if err != nil && !d.behind {
		d.o.log().Error("could not write a file's copy; will try again with the next change", "file", d.copy.path, "error", err)
	}
	if err == nil && d.behind {
		d.o.log().Info("a file's copy is complete again", "file", d.copy.path)
	}
	d.behind = err != nil
}

// maxKeptFrame is how much space a database keeps for the next transaction's frame.
const maxKeptFrame = 64 << 10

// copyLocked adds a transaction to the copy, or rewrites that.
func (d *DB) copyLocked(txid uint64, o ops) error {
	if d.frame = nil; cap(o.buf) <= maxKeptFrame {
		d.frame = o.buf
	}
	if d.copy.f != nil && !d.behind && !d.copy.full() {
		return d.copy.append(o.buf)
	}
	return d.View(func(tx *bbolt.Tx) error {
		all := newContent()
		if err := all.load(tx, d.o.skip); err != nil {
			return err
		}
		return d.copy.write(all, txid)
	})
}

// load reads a database. The values are bbolt's and are valid as long as tx.
func (c content) load(tx *bbolt.Tx, skip func(string) bool) error {
	var nested func(path string, b *bbolt.Bucket) error
	nested = func(path string, b *bbolt.Bucket) error {
		if n := b.Sequence(); n > 0 {
			c.sequences[path] = n
		}
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return nested(below(path, string(k)), b.Bucket(k))
			}
			c.values[slot{path, string(k)}] = v
			return nil
		})
	}
	return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		if skip(string(name)) {
			return nil
		}
		return nested(string(name), b)
	})
}
