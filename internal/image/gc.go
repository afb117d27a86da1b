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

// live is the content that a collection must keep.
type live struct {
	images, blobs, chains map[digest.Digest]bool
}

// mark collects the content of the names of all owners, the checkouts and the leases.
// Preconditions: s.mu is held.
func mark(s *Store) live {
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
			l.images[b] = true // a pull has just found it complete
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

// collectUnused removes the content that no owner, checkout or lease holds. It may run while images are pulled and checked out: leases
// and checkouts are taken with mu held, and under the same mu collectUnused selects content and removes
// its records.
func collectUnused(ctx context.Context, s *Store) (freed uint64, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	now := s.now()
	s.mu.Lock()
	l := mark(s)
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
	// The records are removed first: the next start deletes files without a record.
	if err := s.commit(&c); err != nil {
		s.mu.Lock()
		maps.Copy(s.rec.images, images)
		maps.Copy(s.rec.layers, layers)
		s.mu.Unlock()
		return 0, fmt.Errorf("collect images: %w", err)
	}
	for _, rec := range layers {
		freed += uint64(rec.Bytes)
		_ = os.Remove(s.rec.sumsPath(rec.Dir)) // otherwise the next start does
		discardDir(s, s.rec.layerPath(rec.Dir))
	}
	freed += s.modules.forget(images, l.blobs)
	n, err := sweepBlobs(ctx, s, l)
	s.trash.empty()
	return freed + n, err
}

func discardDir(s *Store, path string) {
	if err := s.trash.add(path); err != nil {
		s.log.Warn("could not move an unused file to the trash; the next collection tries again", "path", path, "error", err)
	}
}

// sweepBlobs removes content that is not live. Preconditions: s.write is held, so that nobody
// gets a lease meanwhile.
func sweepBlobs(ctx context.Context, s *Store, l live) (freed uint64, err error) {
	s.mu.RLock()
	importing := s.imports > 0
	s.mu.RUnlock()
	if importing {
		return 0, nil // an archive's blobs have no lease until the end of the archive
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
		discardDir(s, s.content.path(d))
	}
	return freed, sweepIngests(s)
}

// files lists a directory while its files may change.
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

// part is an unfinished blob.
type part struct {
	dir  string
	size int64
	at   time.Time
}

// listParts lists unfinished blobs. The content store's own list fails when a crash has left a
// blob's directory without its files.
func listParts(root string) ([]part, error) {
	dir := filepath.Join(root, worker.ContentDir, "ingest")
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

// sweepIngests removes unfinished blobs that have not been written to for KeepPartial.
func sweepIngests(s *Store) error {
	s.mu.RLock()
	busy := len(s.leases) > 0
	s.mu.RUnlock()
	if busy {
		return nil
	}
	parts, err := listParts(s.root)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	before := s.now().Add(-time.Duration(s.cfg.KeepPartial))
	for _, p := range parts {
		if p.size == 0 || p.at.Before(before) { // an empty one is of no use
			discardDir(s, p.dir)
		}
	}
	return nil
}

// dropImports deletes the remnants of failed imports. No import continues them: an archive comes
// again as a whole. During another import they stay until its end.
func dropImports(ctx context.Context, s *Store) error {
	errs := []error{dropImported(s)}
	_, err := collectUnused(ctx, s)
	s.trash.sweep() // at once: others may wait for the space
	return errors.Join(append(errs, err)...)
}

// dropImported deletes unfinished blobs of archives.
func dropImported(s *Store) error {
	s.mu.RLock() // no import begins
	defer s.mu.RUnlock()
	if s.imports > 0 {
		return nil
	}
	parts, err := listParts(s.root)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range parts {
		if ref, err := os.ReadFile(filepath.Join(p.dir, "ref")); err == nil && worker.IsDownload(string(ref)) {
			continue // the next pull continues it
		}
		errs = append(errs, s.trash.add(p.dir))
	}
	return errors.Join(errs...)
}

// dropIncomplete deletes the incomplete files of an earlier agent: layers without a record, and unreferenced
// content. mu is not needed: nobody else has the Store yet.
func dropIncomplete(s *Store) error {
	known := map[string]bool{}
	for _, l := range s.rec.layers {
		known[l.Dir] = true
	}
	// A container may have a layer that lost its record with a damaged names.db.
	for _, co := range s.checkouts {
		for _, dir := range co.Dirs {
			known[dir] = true
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.root, worker.LayerDir))
	if err != nil {
		return fmt.Errorf("read layers: %w", err)
	}
	for _, e := range entries {
		if !known[e.Name()] {
			s.log.Info("deleting an unfinished layer", "dir", e.Name())
			discardDir(s, s.rec.layerPath(e.Name()))
		}
	}
	sums, err := os.ReadDir(filepath.Join(s.root, worker.SumsDir))
	if err != nil {
		return fmt.Errorf("read the layers' sums: %w", err)
	}
	for _, e := range sums {
		if !known[e.Name()] {
			_ = os.Remove(s.rec.sumsPath(e.Name())) // the next start tries again
		}
	}
	if err := dropImported(s); err != nil { // of an agent that died in an import
		return fmt.Errorf("unfinished imports: %w", err)
	}
	_, err = collectUnused(context.Background(), s)
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
	parts, err := listParts(s.root)
	if err != nil {
		return core.ImageUsage{}, fmt.Errorf("image usage: %w", err)
	}
	for _, p := range parts {
		u.Bytes += uint64(p.size)
		u.Inodes++
	}
	return u, nil
}
