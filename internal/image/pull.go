package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/image/worker"
)

// pulling is one pull with any number of waiting callers.
type pulling struct {
	mu    sync.Mutex // guards watch, last, blobs, fetched
	watch map[*func(core.PullProgress)]bool
	last  core.PullProgress
	// blobs has the last report of each blob, in the order of the first ones.
	blobs []core.PullProgress
	// fetched is the number of bytes received of each blob that was missing.
	fetched map[digest.Digest]int64
	image   worker.Image
	lease   *lease // nil when the pull was not admitted
}

// retire ends the lease of a pull, when all waiting callers have named the image.
func (p *pulling) retire() {
	if p.lease != nil {
		p.lease.release()
	}
}

func (p *pulling) progress(pr core.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.blobs, func(b core.PullProgress) bool { return b.Blob == pr.Blob }); i >= 0 {
		p.blobs[i] = pr
	} else if pr.Blob != "" {
		p.blobs = append(p.blobs, pr)
	}
	if pr.Blob == "" {
		p.last = pr
	} else if before, begun := p.fetched[pr.Blob]; begun || pr.Status == "downloading" {
		if p.fetched == nil {
			p.fetched = map[digest.Digest]int64{}
		}
		p.fetched[pr.Blob] = max(before, pr.Done)
	}
	for f := range p.watch {
		(*f)(pr)
	}
}

// total returns the number of bytes fetched.
func (p *pulling) total() (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.fetched {
		bytes += n
	}
	return bytes
}

func (p *pulling) subscribe(f func(core.PullProgress)) (cancel func()) {
	if f == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch == nil {
		p.watch = map[*func(core.PullProgress)]bool{}
	}
	p.watch[&f] = true
	if p.last.Status != "" {
		f(p.last)
	}
	for _, b := range p.blobs {
		f(b)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watch, &f)
	}
}

// Pull fetches an image into the store under its full name. Concurrent callers that ask for the
// same share one pull, which continues as long as one of them waits.
func (s *Store) Pull(ctx context.Context, owner core.Owner, ref string, opts core.PullOptions) (core.Image, error) {
	named, err := normalize(ref, s.cfg.DefaultRegistry)
	if err != nil {
		return core.Image{}, fmt.Errorf("pull: %w", err)
	}
	if !opts.Always && opts.Platform == "" {
		if img, ok, err := present(s, owner, named, opts.Pin); ok || err != nil {
			return img, err
		}
	}
	admission, err := s.gate.Open(owner, named)
	if err != nil {
		return core.Image{}, fmt.Errorf("pull %s: %w", named, err)
	}
	known, err := auths(s)
	if err != nil {
		return core.Image{}, fmt.Errorf("pull %s: %w", named, err)
	}
	job := worker.PullJob{Ref: named.String(), Platform: opts.Platform, Auths: known}
	if opts.Host == "" || registry.SameHost(opts.Host, reference.Domain(named)) {
		job.Credentials = registry.Credentials{Username: opts.Username, Password: opts.Password, Token: opts.Token, Bearer: opts.Bearer}
	}
	job.Admit, job.Evidence = admission.Wants()
	if job.Platform == "" {
		job.Emulated = emulated(s.binfmt)
	}
	// A collection keeps the image until it has a name, but another program can damage a layer meanwhile, or remove it.
	for range 3 {
		img, err := s.pullOnce(ctx, owner, named, job, opts)
		if !errors.Is(err, errGone) {
			return img, err
		}
	}
	return core.Image{}, fmt.Errorf("pull %s: %w: %w", named, errdefs.ErrUnavailable, errGone)
}

var errGone = errors.New("layers of the image were removed or damaged while it was pulled")

func (s *Store) pullOnce(ctx context.Context, owner core.Owner, named reference.Named, job worker.PullJob, opts core.PullOptions) (core.Image, error) {
	key := fmt.Sprintf("%s %s %x", job.Ref, job.Platform, sha256.Sum256(fmt.Appendf(nil, "%q", job.Credentials)))
	f := s.pulls.Join(ctx, key, func() *pulling { return &pulling{} }, func(ctx context.Context, p *pulling) error {
		return runPull(ctx, s, p, owner, job, named)
	})
	defer f.Leave()
	defer f.State.subscribe(opts.Progress)()
	if err := f.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("pull %s: %w", named, err)
		}
		return core.Image{}, err
	}
	return s.name(owner, named, f.State.image, opts.Pin)
}

func runPull(ctx context.Context, s *Store, p *pulling, owner core.Owner, job worker.PullJob, named reference.Named) error {
	admission, err := s.gate.Open(owner, named)
	if err != nil {
		return err
	}
	progress, end := layered(ctx, p.progress)
	defer end()
	l := s.newLease(progress)
	p.lease = l
	l.admission = admission
	img, err := s.runner.Pull(ctx, l, job)
	if s.pulled != nil {
		s.pulled(p.total())
	}
	// The worker has handled bytes from outside, so its result is not trusted.
	if verr := l.verdict(job, img); verr != nil {
		return fmt.Errorf("pull %s: %w", named, verr)
	}
	if errdefs.IsResourceExhausted(err) {
		defer giveUp(s, l) // before the lease is released
	}
	if err != nil {
		return err
	}
	p.image = img
	if err := s.keep(img); err != nil {
		return err
	}
	s.modules.warm(s, owner, img)
	return nil
}

// giveUp deletes the files of a pull that failed for lack of space: kept for the next attempt, they
// would keep the disk full. Files that other pulls use stay.
func giveUp(s *Store, l *lease) {
	s.write.Lock()
	s.mu.RLock()
	var blobs []digest.Digest
	for b := range l.blobs {
		shared := false
		for other := range s.leases {
			shared = shared || other != l && other.blobs[b]
		}
		if !shared {
			blobs = append(blobs, b)
		}
	}
	var c change
	for id, rec := range s.rec.leases {
		if id == l.id || !s.active(id) && !slices.ContainsFunc(rec.Blobs, func(b digest.Digest) bool { return !l.blobs[b] }) {
			c.drop(bucketLeases, id, func(r *records) { delete(r.leases, id) })
		}
	}
	s.mu.RUnlock()
	err := s.commit(&c)
	s.write.Unlock()
	for _, b := range blobs {
		if _, serr := os.Lstat(worker.IngestDir(s.root, b)); serr == nil {
			err = errors.Join(err, s.trash.add(worker.IngestDir(s.root, b)))
		}
	}
	s.mu.Lock()
	l.blobs, l.chains = map[digest.Digest]bool{}, map[digest.Digest]bool{}
	for chain := range s.places {
		if !s.leased(chain) {
			s.dropPlace(chain)
		}
	}
	s.mu.Unlock()
	_, cerr := collectUnused(context.Background(), s)
	s.trash.sweep() // at once: others wait for the space
	if err = errors.Join(err, cerr); err != nil {
		s.log.Warn("could not delete the files of a pull that failed for lack of space", "error", err)
	}
}

func auths(s *Store) (map[string]registry.Credentials, error) {
	if s.cfg.DockerConfig == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.cfg.DockerConfig)
	if err != nil {
		return nil, fmt.Errorf("read docker config: %w", err)
	}
	return registry.ParseAuths(data)
}

// present returns an image that needs no pull.
func present(s *Store, owner core.Owner, named reference.Named, pin bool) (core.Image, bool, error) {
	s.mu.RLock()
	o := s.rec.owner0(owner)
	stored, ok := o.storedAs(named.String())
	n := o.names[stored]
	whole := ok && s.rec.whole(n.Manifest) && s.blobsThere(n.Manifest)
	s.mu.RUnlock()
	if !whole {
		return core.Image{}, false, nil
	}
	img, err := s.describe(owner, n.Manifest)
	if err != nil {
		return core.Image{}, false, nil //nolint:nilerr // damaged: the pull repairs it
	}
	if pin && !img.Pinned {
		img.Pinned = true
		err = s.Pin(context.Background(), owner, img.ID.String(), true)
	}
	return img, err == nil, err
}

// whole reports whether all layers of an image are on disk. Preconditions: s.mu.
func (r *records) whole(manifest digest.Digest) bool {
	rec := r.images[manifest]
	if rec == nil {
		return false
	}
	return !slices.ContainsFunc(rec.Chains, func(c digest.Digest) bool { return !r.layerThere(c) })
}

func (r *records) layerThere(chain digest.Digest) bool {
	l, ok := r.layers[chain]
	if !ok || l.Damaged {
		return false
	}
	fi, err := os.Lstat(r.layerPath(l.Dir))
	return err == nil && fi.IsDir()
}

// keep records an image that is now on disk.
func (s *Store) keep(img worker.Image) error {
	s.write.Lock()
	defer s.write.Unlock()
	var c change
	s.mu.RLock()
	rec := &imageRecord{ID: imageID(img), Manifest: img.Manifest, Config: img.Config, Blobs: img.Blobs, Pulled: s.now(), Annotations: img.Annotations, Artifact: img.Artifact}
	var replaced []string // directories of layers that were damaged
	for _, l := range img.Layers {
		rec.Chains = append(rec.Chains, l.Chain)
		if old, ok := s.rec.layers[l.Chain]; !l.Known && (!ok || old.Dir != l.Dir) {
			if ok {
				replaced = append(replaced, old.Dir)
			}
			c.putLayer(l.Chain, layerRecord{Dir: l.Dir, DiffID: l.DiffID, Bytes: l.Bytes, Inodes: l.Inodes, Opaque: l.Opaque, Links: l.Links})
		}
	}
	if old := s.rec.images[img.Manifest.Digest]; old == nil {
		c.putImage(rec)
	}
	s.mu.RUnlock()
	if err := s.commit(&c); err != nil {
		return err
	}
	for _, dir := range replaced {
		discardUnused(s, dir)
	}
	s.trash.empty()
	return nil
}

// discardUnused removes the directory of a layer that has another one now, unless a container has
// it: then the first start of an agent without that container removes it.
func discardUnused(s *Store, dir string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, co := range s.checkouts {
		if slices.Contains(co.Dirs, dir) {
			return
		}
	}
	discardDir(s, s.rec.layerPath(dir))
}

// name gives a pulled image's names to the owner.
func (s *Store) name(owner core.Owner, named reference.Named, img worker.Image, pin bool) (core.Image, error) {
	s.write.Lock()
	s.mu.RLock()
	gone := !s.rec.whole(img.Manifest.Digest)
	var c change
	if !gone {
		rec := nameRecord{Manifest: img.Manifest.Digest, Target: img.Target.Digest, At: s.now()}
		_, rec.Asked = named.(reference.Digested)
		s.rec.setName(&c, owner, named.String(), rec)
		if !rec.Asked {
			byDigest := repository(named.String()) + "@" + img.Target.Digest.String()
			if old, ok := s.rec.owner0(owner).names[byDigest]; !ok || old.Manifest != rec.Manifest {
				c.putName(owner, byDigest, rec)
			}
		}
		if pin {
			c.pin(owner, imageID(img), true)
		}
	}
	s.mu.RUnlock()
	if gone {
		s.write.Unlock()
		return core.Image{}, errGone
	}
	err := s.commit(&c)
	s.write.Unlock()
	if err != nil {
		return core.Image{}, fmt.Errorf("pull %s: %w", named, err)
	}
	return s.describe(owner, img.Manifest.Digest)
}

// setName makes name refer to another image. An image that would lose its last name keeps an
// entry without a name until it is removed or pruned.
func (r *records) setName(c *change, owner core.Owner, name string, rec nameRecord) {
	o := r.owner0(owner)
	if old, ok := o.names[name]; ok && old.Manifest != rec.Manifest {
		if len(o.namesOf(map[digest.Digest]bool{old.Manifest: true})) == 1 {
			old.Asked = true
			c.putName(owner, "@"+old.Manifest.String(), old)
		}
	} else if ok && old.Target == rec.Target && old.Asked == rec.Asked {
		return
	}
	if nameless := "@" + rec.Manifest.String(); name != nameless {
		if _, ok := o.names[nameless]; ok {
			c.dropName(owner, nameless)
		}
	}
	c.putName(owner, name, rec)
}

// owner0 returns the record of an owner for reading; it may be empty.
func (r *records) owner0(o core.Owner) *ownerRecord {
	if rec := r.owners[o]; rec != nil {
		return rec
	}
	return &ownerRecord{}
}

// lease protects the content of a job from collection. It implements worker.Agent.
type lease struct {
	s        *Store
	progress func(core.PullProgress)
	id       string                 // in names.db, "" when nothing was recorded
	blobs    map[digest.Digest]bool // guarded by s.mu, as is chains
	chains   map[digest.Digest]bool

	admission *trust.Case   // nil when the job is not a pull
	admitted  digest.Digest // guarded by s.mu, as is refusal
	refusal   error
}

func (s *Store) newLease(progress func(core.PullProgress)) *lease {
	l := &lease{s: s, progress: progress, blobs: map[digest.Digest]bool{}, chains: map[digest.Digest]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[l] = true
	return l
}

// Progress implements worker.Agent.
func (l *lease) Progress(p core.PullProgress) {
	if l.progress != nil {
		l.progress(p)
	}
}

// Admit implements worker.Agent.
func (l *lease) Admit(ctx context.Context, claim trust.Claim) error {
	if l.admission == nil {
		return fmt.Errorf("admit %s: nothing is pulled: %w", claim.Target.Digest, errdefs.ErrInternal)
	}
	err := l.admission.Admit(ctx, claim)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.refusal = err; err == nil {
		l.admitted = claim.Target.Digest
	}
	return err
}

// verdict returns the decision about the image of a job.
func (l *lease) verdict(job worker.PullJob, img worker.Image) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch {
	case l.refusal != nil:
		return l.refusal
	case job.Admit && img.Target.Digest != "" && img.Target.Digest != l.admitted:
		return fmt.Errorf("%w: the worker brought %s, and %q was admitted: %w", core.ErrImageRefused, img.Target.Digest, l.admitted, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Lease implements worker.Agent.
func (l *lease) Lease(_ context.Context, blobs, chains []digest.Digest) (map[digest.Digest]worker.Place, error) {
	s := l.s
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	places := map[digest.Digest]worker.Place{}
	var missing []digest.Digest
	for _, c := range chains {
		l.chains[c] = true
		switch dir, given := s.places[c]; {
		case s.rec.layerThere(c):
			places[c] = worker.Place{Dir: s.rec.layers[c].Dir, Ready: true, Opaque: s.rec.layers[c].Opaque}
		case given:
			places[c] = worker.Place{Dir: dir}
		default:
			missing = append(missing, c)
		}
	}
	for _, b := range blobs {
		l.blobs[b] = true
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return places, nil
	}
	rec := leaseRecord{Blobs: blobs, Expires: s.now().Add(time.Duration(s.cfg.KeepPartial))}
	var dirs []string
	err := s.db.Update(func(tx *dbfile.Tx) error {
		dirs = dirs[:0]
		for len(dirs) < len(missing) {
			n, err := tx.NextSequence(string(bucketDirs))
			if err != nil {
				return err
			}
			dir := strconv.FormatUint(n, 36)
			// After a names.db was lost the numbers begin again, and containers use old layers.
			if _, err := os.Lstat(s.rec.layerPath(dir)); err == nil {
				continue
			}
			dirs = append(dirs, dir)
		}
		if l.id == "" {
			l.id = dirs[0]
		}
		return putJSON(tx, l.id, rec, string(bucketLeases))
	})
	if err != nil {
		return nil, fmt.Errorf("write names.db: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.leases[l.id] = rec
	for i, c := range missing {
		s.places[c] = dirs[i]
		places[c] = worker.Place{Dir: dirs[i]}
	}
	return places, nil
}

// release ends the lease of a job that has ended, successfully or not. The record of an
// unfinished one stays until it expires, so that the next attempt continues with its blobs.
func (l *lease) release() {
	s := l.s
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	delete(s.leases, l)
	done := len(l.chains) > 0
	for c := range l.chains {
		if _, ok := s.rec.layers[c]; !ok {
			done = false
		}
		if !s.leased(c) {
			s.dropPlace(c)
		}
	}
	var c change
	if done {
		for id, rec := range s.rec.leases {
			if id == l.id || (!s.active(id) && !slices.ContainsFunc(rec.Blobs, func(b digest.Digest) bool { return !l.blobs[b] })) {
				c.drop(bucketLeases, id, func(r *records) { delete(r.leases, id) })
			}
		}
	}
	s.mu.Unlock()
	if err := s.commit(&c); err != nil {
		s.log.Warn("could not remove the lease of a finished pull; it expires by itself", "error", err)
	}
}

// active reports whether the job of a recorded lease is running. Preconditions: s.mu.
func (s *Store) active(id string) bool {
	for l := range s.leases {
		if l.id == id {
			return true
		}
	}
	return false
}

// leased reports whether a job uses a layer. Preconditions: s.mu.
func (s *Store) leased(chain digest.Digest) bool {
	for l := range s.leases {
		if l.chains[chain] {
			return true
		}
	}
	return false
}

// dropPlace forgets the directory assigned to a layer that nobody unpacks any more.
// Preconditions: s.mu is held.
func (s *Store) dropPlace(chain digest.Digest) {
	dir, ok := s.places[chain]
	if !ok {
		return
	}
	delete(s.places, chain)
	if rec, ok := s.rec.layers[chain]; ok && rec.Dir == dir {
		return
	}
	_ = os.Remove(s.rec.sumsPath(dir)) // otherwise the next start does
	if err := s.trash.add(s.rec.layerPath(dir)); err != nil {
		s.log.Warn("could not delete an unfinished layer; the next start does", "dir", dir, "error", err)
	}
}
