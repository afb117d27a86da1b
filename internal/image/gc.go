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

// collector removes content of a store that no owner, checkout or lease holds.
type collector struct{ s *Store }

// live is the content that a collection must keep.
type live struct {
	images, blobs, chains map[digest.Digest]bool
}

// mark collects the content of the names of all owners, the checkouts and the leases.
// Preconditions: s.mu is held.
func (g collector) mark() live {
	l := live{images: map[digest.Digest]bool{}, blobs: map[digest.Digest]bool{}, chains: map[digest.Digest]bool{}}
	for _, o := range g.s.rec.owners {
		for _, n := range o.names {
			l.images[n.Manifest] = true
			l.blobs[n.Target] = true
		}
	}
	for _, co := range g.s.checkouts {
		if co.Manifest != "" {
			l.images[co.Manifest] = true
		}
		for _, c := range co.Chains {
			l.chains[c] = true
		}
	}
	for m := range l.images {
		rec := g.s.rec.images[m]
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
	for lease := range g.s.leases {
		for b := range lease.blobs {
			l.blobs[b] = true
			l.images[b] = true // a pull has just found it complete
		}
		for c := range lease.chains {
			l.chains[c] = true
		}
	}
	now := g.s.now()
	for _, rec := range g.s.rec.leases {
		if rec.Expires.Before(now) {
			continue
		}
		for _, b := range rec.Blobs {
			l.blobs[b] = true
		}
	}
	return l
}

// collect removes unreferenced content. It may run while images are pulled and checked out: leases
// and checkouts are taken with mu held, and under the same mu collect selects content and removes
// its records.
func (g collector) collect(ctx context.Context) (freed uint64, err error) {
	g.s.write.Lock()
	defer g.s.write.Unlock()
	now := g.s.now()
	g.s.mu.Lock()
	l := g.mark()
	images, layers := map[digest.Digest]*imageRecord{}, map[digest.Digest]layerRecord{}
	var c change
	for m, rec := range g.s.rec.images {
		if !l.images[m] {
			images[m] = rec
			c.drop(bucketImages, m.String(), func(*records) {})
			delete(g.s.rec.images, m)
		}
	}
	for chain, rec := range g.s.rec.layers {
		if !l.chains[chain] {
			layers[chain] = rec
			c.drop(bucketLayers, chain.String(), func(*records) {})
			delete(g.s.rec.layers, chain)
		}
	}
	for id, rec := range g.s.rec.leases {
		if rec.Expires.Before(now) && !g.s.active(id) {
			c.drop(bucketLeases, id, func(r *records) { delete(r.leases, id) })
		}
	}
	g.s.mu.Unlock()
	// The records are removed first: the next start deletes files without a record.
	if err := g.s.commit(&c); err != nil {
		g.s.mu.Lock()
		maps.Copy(g.s.rec.images, images)
		maps.Copy(g.s.rec.layers, layers)
		g.s.mu.Unlock()
		return 0, fmt.Errorf("collect images: %w", err)
	}
	for _, rec := range layers {
		freed += uint64(rec.Bytes)
		_ = os.Remove(g.s.rec.sumsPath(rec.Dir)) // otherwise the next start does
		g.discardDir(g.s.rec.layerPath(rec.Dir))
	}
	freed += g.s.modules.forget(images, l.blobs)
	n, err := g.sweepBlobs(ctx, l)
	g.s.trash.empty()
	return freed + n, err
}

func (g collector) discardDir(path string) {
	if err := g.s.trash.add(path); err != nil {
		g.s.log.Warn("could not move an unused file to the trash; the next collection tries again", "path", path, "error", err)
	}
}

// sweepBlobs removes content that is not live. Preconditions: s.write is held, so that nobody
// gets a lease meanwhile.
func (g collector) sweepBlobs(ctx context.Context, l live) (freed uint64, err error) {
	g.s.mu.RLock()
	importing := g.s.imports > 0
	g.s.mu.RUnlock()
	if importing {
		return 0, nil // an archive's blobs have no lease until the end of the archive
	}
	blobs, err := files(filepath.Join(g.s.content.dir, "sha256"))
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
		g.discardDir(g.s.content.path(d))
	}
	return freed, g.sweepIngests()
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
func (g collector) sweepIngests() error {
	g.s.mu.RLock()
	busy := len(g.s.leases) > 0
	g.s.mu.RUnlock()
	if busy {
		return nil
	}
	parts, err := listParts(g.s.root)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	before := g.s.now().Add(-time.Duration(g.s.cfg.KeepPartial))
	for _, p := range parts {
		if p.size == 0 || p.at.Before(before) { // an empty one is of no use
			g.discardDir(p.dir)
		}
	}
	return nil
}

// dropImports deletes the remnants of failed imports. No import continues them: an archive comes
// again as a whole. During another import they stay until its end.
func (g collector) dropImports(ctx context.Context) error {
	errs := []error{g.dropImported()}
	_, err := g.collect(ctx)
	g.s.trash.sweep() // at once: others may wait for the space
	return errors.Join(append(errs, err)...)
}

// dropImported deletes unfinished blobs of archives.
func (g collector) dropImported() error {
	g.s.mu.RLock() // no import begins
	defer g.s.mu.RUnlock()
	if g.s.imports > 0 {
		return nil
	}
	parts, err := listParts(g.s.root)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range parts {
		if ref, err := os.ReadFile(filepath.Join(p.dir, "ref")); err == nil && worker.IsDownload(string(ref)) {
			continue // the next pull continues it
		}
		errs = append(errs, g.s.trash.add(p.dir))
	}
	return errors.Join(errs...)
}

// recover deletes what an earlier agent left incomplete: layers without a record, and unreferenced
// content. mu is not needed: nobody else has the Store yet.
func (g collector) recover() error {
	known := map[string]bool{}
	for _, l := range g.s.rec.layers {
		known[l.Dir] = true
	}
	// A container may have a layer that lost its record with a damaged names.db.
	for _, co := range g.s.checkouts {
		for _, dir := range co.Dirs {
			known[dir] = true
		}
	}
	entries, err := os.ReadDir(filepath.Join(g.s.root, worker.LayerDir))
	if err != nil {
		return fmt.Errorf("read layers: %w", err)
	}
	for _, e := range entries {
		if !known[e.Name()] {
			g.s.log.Info("deleting an unfinished layer", "dir", e.Name())
			g.discardDir(g.s.rec.layerPath(e.Name()))
		}
	}
	sums, err := os.ReadDir(filepath.Join(g.s.root, worker.SumsDir))
	if err != nil {
		return fmt.Errorf("read the layers' sums: %w", err)
	}
	for _, e := range sums {
		if !known[e.Name()] {
			_ = os.Remove(g.s.rec.sumsPath(e.Name())) // the next start tries again
		}
	}
	if err := g.dropImported(); err != nil { // of an agent that died in an import
		return fmt.Errorf("unfinished imports: %w", err)
	}
	_, err = g.collect(context.Background())
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
