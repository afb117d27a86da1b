package dbfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
)

// Report has the findings and actions of Repair.
type Report struct {
	Path string
	// Damage describes the file's damage; "" if it is sound.
	Damage string
	// Whole means that nothing is lost: the copy had everything.
	Whole bool
	// Entries is how many entries the repaired file has, and Dropped how many could be read and
	// made no sense.
	Entries, Dropped int
	// Places are the damaged places of a file with a damaged copy: their content is lost unless the
	// copy still has it.
	Places []string
	// Lost names the entries that were in the file and are lost.
	Lost []string

	found content // the content of the repaired file
}

// dropOrphans drops the entries that lack another one, and those that lack these.
func (r *Report) dropOrphans(o *Options) {
	for more := o.Orphan != nil; more; {
		more = false
		for s, v := range r.found.values {
			if o.Orphan(r.Has, names(s.bucket), v) {
				delete(r.found.values, s)
				r.Dropped++
				r.Whole, more = false, true
			}
		}
	}
}

// Has reports whether the repaired file has an entry.
func (r *Report) Has(key string, bucket ...string) bool {
	_, ok := r.found.values[slot{strings.Join(bucket, separator), key}]
	return ok
}

// Each calls fn with each entry of the repaired file; bucket are the names from the outermost on.
func (r *Report) Each(fn func(bucket []string, key string, value []byte)) {
	for s, v := range r.found.values {
		fn(names(s.bucket), s.key, v)
	}
}

// Repair makes a damaged file sound: from its copy, and if that is damaged too, from the readable
// parts of both. The damaged file is kept beside it. Nobody may have the file open. With dry it
// changes nothing.
func Repair(o Options, dry bool) (r Report, err error) {
	r.Path = o.Path
	_, err = os.Stat(o.Path)
	gone := errors.Is(err, fs.ErrNotExist)
	strange := atomicfile.Strange(o.Path) != ""
	if err != nil && !gone && !strange {
		return r, err
	}
	c, err := readCopy(o.Path + copySuffix)
	if err != nil {
		return r, err
	}
	if gone {
		if !c.some {
			return r, nil // it was never made
		}
		r.Damage = "it is gone"
	} else if r.Damage, err = o.damage(&c); err != nil || r.Damage == "" {
		return r, err
	}
	found := newContent()
	if r.Whole = c.whole; !r.Whole && !gone && !strange {
		found, _, err = readTree(o.Path, o.skip, func(err error) { r.Places = append(r.Places, err.Error()) })
		if err != nil && !errdefs.IsDataLoss(err) {
			return r, err
		}
		if err != nil {
			r.Places = append(r.Places, err.Error())
		}
	}
	for s, v := range c.values {
		// Entries of the copy from before a damaged place may be outdated: the file's entries are
		// preferred.
		if newer, ok := found.values[s]; ok && c.doubtful(s) && (o.Valid == nil || o.Valid(names(s.bucket), []byte(s.key), newer)) {
			continue
		}
		if c.doubtful(s) && o.Useless != nil && o.Useless(names(s.bucket), v) {
			delete(found.values, s)
			r.Dropped++
			continue
		}
		found.values[s] = v
	}
	for bucket, n := range c.sequences {
		found.sequences[bucket] = max(n, found.sequences[bucket])
	}
	for s, v := range found.values {
		if o.Valid != nil && !o.Valid(names(s.bucket), []byte(s.key), v) {
			delete(found.values, s)
			r.Dropped++
			r.Whole = false
		}
	}
	r.found = found
	r.dropOrphans(&o)
	r.Entries = len(found.values)
	if dry {
		return r, nil
	}
	if err := o.replace(found); err != nil {
		return r, fmt.Errorf("repair %s: %w", o.Path, err)
	}
	return r, nil
}

// damage describes the file's damage; "" if it is sound.
func (o *Options) damage(c *copied) (string, error) {
	if strange := atomicfile.Strange(o.Path); strange != "" {
		return "it is " + strange, nil
	}
	held, txid, err := readTree(o.Path, o.skip, nil)
	switch {
	case errdefs.IsDataLoss(err):
		return err.Error(), nil
	case err != nil:
		return "", err
	case c.whole && c.txid > txid:
		return fmt.Sprintf("it ends with transaction %d and its copy with %d", txid, c.txid), nil
	case c.whole && c.txid == txid:
		if at := held.differs(c.content); at != "" {
			return at + " is not what its copy says", nil
		}
	case !c.whole && o.Valid != nil:
		for s, v := range held.values {
			if !o.Valid(names(s.bucket), []byte(s.key), v) {
				return fmt.Sprintf("%q of %q cannot be read", s.key, names(s.bucket)), nil
			}
		}
	}
	return "", nil
}

// Exists reports whether there is a file at path, or a copy of it, which Open would restore.
func Exists(path string) (bool, error) {
	for _, p := range []string{path, path + copySuffix} {
		if _, err := os.Stat(p); err == nil || atomicfile.Strange(p) != "" {
			return true, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// Remove removes a file with all that belongs to it.
func Remove(path string) error {
	// The copy goes first: alone it would make the file again.
	for _, suffix := range []string{copySuffix, copySuffix + newSuffix, newSuffix, "", damagedSuffix, copySuffix + damagedSuffix} {
		if err := os.RemoveAll(path + suffix); err != nil {
			return err
		}
	}
	return nil
}
