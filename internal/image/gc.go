package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/worker"
)

// live is what a collection must leave.
type live struct {
	images, blobs, chains map[digest.Digest]bool
}

// mark follows every owner's names, the checkouts and the leases.
// Preconditions: s.mu is held.
func (s *Store) mark() live {
	l := live{images: map[digest.Digest]bool{}, blobs: map[digest.Digest]bool{}, chains: map[digest.Digest]bool{}}
	for _, o := range s.rec.owners {
		for _, n := range o.names {
			l.images[n.Manifest] = true
			l.blobs[n.Target] = true
		}
	}
	for _, co := range s.checkouts {
		if co.Manifest != "" {
			l.images[co.Manifest] = true
		}
		for _, c := range co.Chains {
			l.chains[c] = true
		}
	}
	for m := range l.images {
		rec := s.rec.images[m]
		if rec == nil {
			continue
		}
		l.blobs[rec.Manifest.Digest], l.blobs[rec.Config.Digest] = true, true
		for _, b := range rec.Blobs {
			l.blobs[b.Digest] = true
		}
		for _, c := range rec.Chains {
			l.chains[c] = true
		}
	}
	for lease := range s.leases {
		for b := range lease.blobs {
			l.blobs[b] = true
			l.images[b] = true // a pull that has just found it whole
		}
		for c := range lease.chains {
			l.chains[c] = true
		}
	}
	now := s.now()
	for _, rec := range s.rec.leases {
		if rec.Expires.Before(now) {
			continue
		}
		for _, b := range rec.Blobs {
			l.blobs[b] = true
		}
	}
	return l
}

// collect removes what nobody holds. It is safe beside pulls and checkouts:
// what it takes is decided and put out of reach while mu is held, as a lease
// and a checkout are.
func (s *Store) collect(ctx context.Context) (freed uint64, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	now := s.now()
	s.mu.Lock()
	l := s.mark()
	images, layers := map[digest.Digest]*imageRecord{}, map[digest.Digest]layerRecord{}
	var c change
	for m, rec := range s.rec.images {
		if !l.images[m] {
			images[m] = rec
			c.drop(bucketImages, m.String(), func(*records) {})
			delete(s.rec.images, m)
		}
	}
	for chain, rec := range s.rec.layers {
		if !l.chains[chain] {
			layers[chain] = rec
			c.drop(bucketLayers, chain.String(), func(*records) {})
			delete(s.rec.layers, chain)
		}
	}
	for id, rec := range s.rec.leases {
		if rec.Expires.Before(now) && !s.active(id) {
			c.drop(bucketLeases, id, func(r *records) { delete(r.leases, id) })
		}
	}
	s.mu.Unlock()
	// The records go first: what is on disk without a record is cleared away
	// at the next start.
	if err := s.commit(&c); err != nil {
		s.mu.Lock()
		maps.Copy(s.rec.images, images)
		maps.Copy(s.rec.layers, layers)
		s.mu.Unlock()
		return 0, fmt.Errorf("collect images: %w", err)
	}
	for _, rec := range layers {
		freed += uint64(rec.Bytes)
		s.discardDir(s.rec.layerPath(rec.Dir))
	}
	n, err := s.sweepBlobs(ctx, l)
	s.trash.empty()
	return freed + n, err
}

func (s *Store) discardDir(path string) {
	if err := s.trash.add(path); err != nil {
		s.log.Warn("throw away", "path", path, "error", err)
	}
}

// sweepBlobs removes content that is not live. Preconditions: s.write is held,
// so that nobody gets a lease meanwhile.
func (s *Store) sweepBlobs(ctx context.Context, l live) (freed uint64, err error) {
	s.mu.RLock()
	importing := s.imports > 0
	s.mu.RUnlock()
	if importing {
		return 0, nil // an archive's blobs have no lease until it is read
	}
	blobs, err := files(filepath.Join(s.content.dir, "sha256"))
	if err != nil {
		return 0, fmt.Errorf("collect images: %w", err)
	}
	for _, fi := range blobs {
		d := digest.NewDigestFromEncoded(digest.SHA256, fi.Name())
		if l.blobs[d] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return freed, fmt.Errorf("collect images: %w", err)
		}
		freed += uint64(fi.Size())
		s.discardDir(s.content.path(d))
	}
	return freed, s.sweepIngests()
}

// files lists a directory in which files come and go.
func files(dir string) ([]os.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	list := make([]os.FileInfo, 0, len(entries))
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, fi)
	}
	return list, nil
}

// part is a blob of which not all is there.
type part struct {
	dir  string
	size int64
	at   time.Time
}

// parts lists unfinished blobs. The content store's own list gives up when a
// crash left one without its files.
func (s *Store) parts() ([]part, error) {
	dir := filepath.Join(s.root, worker.ContentDir, "ingest")
	dirs, err := files(dir)
	if err != nil {
		return nil, err
	}
	list := make([]part, 0, len(dirs))
	for _, d := range dirs {
		p := part{dir: filepath.Join(dir, d.Name()), at: d.ModTime()}
		if fi, err := os.Stat(filepath.Join(p.dir, "data")); err == nil {
			p.size, p.at = fi.Size(), fi.ModTime()
		}
		list = append(list, p)
	}
	return list, nil
}

// sweepIngests removes parts of blobs that nobody has touched for long.
func (s *Store) sweepIngests() error {
	s.mu.RLock()
	busy := len(s.leases) > 0
	s.mu.RUnlock()
	if busy {
		return nil
	}
	parts, err := s.parts()
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	before := s.now().Add(-time.Duration(s.cfg.KeepPartial))
	for _, p := range parts {
		if p.size == 0 || p.at.Before(before) { // an empty one has nothing to go on from
			s.discardDir(p.dir)
		}
	}
	return nil
}

// recover clears away what an earlier agent left half made: layers without a
// record, and content that nobody holds.
func (s *Store) recover() error {
	known := map[string]bool{}
	for _, l := range s.rec.layers {
		known[l.Dir] = true
	}
	entries, err := os.ReadDir(filepath.Join(s.root, worker.LayerDir))
	if err != nil {
		return fmt.Errorf("read layers: %w", err)
	}
	for _, e := range entries {
		if !known[e.Name()] {
			s.log.Info("clear away unfinished layer", "dir", e.Name())
			s.discardDir(s.rec.layerPath(e.Name()))
		}
	}
	_, err = s.collect(context.Background())
	return err
}

// Usage implements core.Images.
func (s *Store) Usage(context.Context) (core.ImageUsage, error) {
	u := core.ImageUsage{Path: s.root}
	s.mu.RLock()
	for _, l := range s.rec.layers {
		u.Bytes += uint64(l.Bytes)
		u.Inodes += uint64(l.Inodes)
	}
	s.mu.RUnlock()
	blobs, err := files(filepath.Join(s.content.dir, "sha256"))
	if err != nil {
		return core.ImageUsage{}, fmt.Errorf("image usage: %w", err)
	}
	for _, fi := range blobs {
		u.Bytes += uint64(fi.Size())
		u.Inodes++
	}
	parts, err := s.parts()
	if err != nil {
		return core.ImageUsage{}, fmt.Errorf("image usage: %w", err)
	}
	for _, p := range parts {
		u.Bytes += uint64(p.size)
		u.Inodes++
	}
	return u, nil
}
