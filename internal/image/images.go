package image

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/hostname"
	"github.com/longshore/longshore/internal/image/wasm"
)

// found is the result of a reference's lookup for an owner: an image ID and the manifests of it
// that the owner has.
type found struct {
	id        digest.Digest
	manifests map[digest.Digest]bool
	first     digest.Digest // the manifest that describes it
	name      string        // the stored name, "" when found by ID
}

// find resolves a name, name@digest, ID or prefix of an ID. Owner "" searches all owners.
// Preconditions: s.mu is held.
func (r *records) find(owner core.Owner, ref string) (found, error) {
	if f, ok, err := r.findID(owner, ref); ok || err != nil {
		return f, err
	}
	named, err := normalize(ref, r.defaultRegistry)
	if err != nil {
		return found{}, err
	}
	name := named.String()
	for _, o := range r.ownersOf(owner) {
		rec := r.owners[o]
		if stored, ok := rec.storedAs(name); ok {
			return r.foundBy(owner, rec.names[stored], stored), nil
		}
		d, ok := named.(reference.Digested)
		if !ok {
			continue
		}
		// The digest may be that of a manifest in an index that was pulled.
		for stored, n := range rec.names {
			if (n.Manifest == d.Digest() || n.Target == d.Digest()) && hostname.Stored(repository(stored)) == named.Name() {
				return r.foundBy(owner, n, stored), nil
			}
		}
	}
	return found{}, fmt.Errorf("image %s: %w", ref, errdefs.ErrNotFound)
}

func (r *records) foundBy(owner core.Owner, n nameRecord, name string) found {
	img := r.images[n.Manifest]
	if img == nil {
		return found{first: n.Manifest, manifests: map[digest.Digest]bool{n.Manifest: true}, name: name}
	}
	return found{id: img.ID, first: n.Manifest, manifests: r.manifestsOf(owner, img.ID), name: name}
}

func (r *records) findID(owner core.Owner, ref string) (found, bool, error) {
	prefix := idPrefix(ref)
	if prefix == "" {
		return found{}, false, nil
	}
	ids := map[digest.Digest]nameRecord{}
	for _, o := range r.ownersOf(owner) {
		for name, n := range r.owners[o].names {
			img := r.images[n.Manifest]
			if name == ref || img == nil {
				continue
			}
			whole := strings.HasPrefix(ref, "sha256:") && n.Manifest.String() == ref
			if strings.HasPrefix(img.ID.Encoded(), prefix) || whole {
				if cur, ok := ids[img.ID]; !ok || n.At.After(cur.At) {
					ids[img.ID] = n
				}
			}
		}
	}
	switch {
	case len(ids) == 0 && (strings.HasPrefix(ref, "sha256:") || len(prefix) == 64):
		return found{}, true, fmt.Errorf("image %s: %w", ref, errdefs.ErrNotFound)
	case len(ids) == 0:
		return found{}, false, nil
	case len(ids) > 1:
		return found{}, true, fmt.Errorf("image %s: the IDs of %d images begin like this: %w", ref, len(ids), errdefs.ErrInvalidArgument)
	}
	for id, n := range ids {
		return found{id: id, first: n.Manifest, manifests: r.manifestsOf(owner, id)}, true, nil
	}
	panic("unreachable")
}

// manifestsOf returns the owner's manifests with this config.
func (r *records) manifestsOf(owner core.Owner, id digest.Digest) map[digest.Digest]bool {
	m := map[digest.Digest]bool{}
	for _, o := range r.ownersOf(owner) {
		for _, n := range r.owners[o].names {
			if img := r.images[n.Manifest]; img != nil && img.ID == id {
				m[n.Manifest] = true
			}
		}
	}
	return m
}

// ownersOf returns owner, or for "" all owners that have images, in order.
func (r *records) ownersOf(owner core.Owner) []core.Owner {
	var all []core.Owner
	for o := range r.owners {
		if owner == "" || o == owner {
			all = append(all, o)
		}
	}
	slices.Sort(all)
	return all
}

// Get implements core.Images.
func (s *Store) Get(_ context.Context, owner core.Owner, ref string) (core.Image, error) {
	s.mu.RLock()
	f, err := s.rec.find(owner, ref)
	s.mu.RUnlock()
	if err != nil {
		return core.Image{}, err
	}
	return s.describe(owner, f.first)
}

// List implements core.Images.
func (s *Store) List(ctx context.Context, owner core.Owner) ([]core.Image, error) {
	s.mu.RLock()
	newest := map[digest.Digest]nameRecord{}
	for _, o := range s.rec.ownersOf(owner) {
		for _, n := range s.rec.owners[o].names {
			img := s.rec.images[n.Manifest]
			if img == nil {
				continue
			}
			if cur, ok := newest[img.ID]; !ok || n.At.After(cur.At) {
				newest[img.ID] = n
			}
		}
	}
	s.mu.RUnlock()
	list := make([]core.Image, 0, len(newest))
	for _, n := range newest {
		img, err := s.describe(owner, n.Manifest)
		switch {
		case errdefs.IsNotFound(err):
			continue // removed meanwhile
		case errdefs.IsDataLoss(err):
			s.log.WarnContext(ctx, "an image is damaged: pull it again", "error", err) // listed without its config
		case err != nil:
			return nil, err
		}
		list = append(list, img)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list, nil
}

// describe returns one image as the owner sees it.
func (s *Store) describe(owner core.Owner, manifest digest.Digest) (core.Image, error) {
	s.mu.RLock()
	rec := s.rec.images[manifest]
	if rec == nil {
		s.mu.RUnlock()
		return core.Image{}, fmt.Errorf("image with manifest %s: %w", manifest, errdefs.ErrNotFound)
	}
	img := core.Image{ID: rec.ID, Digest: manifest, ManifestSize: rec.Manifest.Size, Size: rec.size(), Pulled: rec.Pulled}
	manifests := s.rec.manifestsOf(owner, rec.ID)
	for _, o := range s.rec.ownersOf(owner) {
		r := s.rec.owners[o]
		img.Pinned = img.Pinned || r.pins[rec.ID]
		for name, n := range r.namesOf(manifests) {
			switch {
			case strings.HasPrefix(name, "@"):
			case isDigestName(name):
				img.Digests = append(img.Digests, name)
			default:
				img.Names = append(img.Names, name)
			}
			if n.At.After(img.Pulled) && n.Manifest == manifest {
				img.Pulled = n.At
			}
		}
	}
	for _, c := range rec.Chains {
		img.Layers = append(img.Layers, s.rec.layers[c].Bytes)
		img.Unpacked += s.rec.layers[c].Bytes
	}
	s.mu.RUnlock()
	slices.Sort(img.Names)
	slices.Sort(img.Digests)
	img.Names, img.Digests = slices.Compact(img.Names), slices.Compact(img.Digests)
	if rec.Artifact != "" {
		err := describeArtifact(s, rec, &img)
		return img, unlessRemoved(s, manifest, err)
	}
	cfg, err := s.config(rec)
	img.Config, img.Health, img.Shell = cfg.Image, cfg.docker.Healthcheck, cfg.docker.Shell
	img.OnBuild = cfg.docker.OnBuild
	img.Annotations = maps.Clone(rec.Annotations)
	img.Wasm = rec.isModule() || wasm.Compat(rec.Annotations, cfg.Config.Labels)
	return img, unlessRemoved(s, manifest, err)
}

// unlessRemoved returns the error of reading an image's files, or that there is no such image, if it was removed meanwhile:
// a collection removes the record before the files.
func unlessRemoved(s *Store, manifest digest.Digest, err error) error {
	if err == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.rec.images[manifest] == nil {
		return fmt.Errorf("image with manifest %s was removed: %w", manifest, errdefs.ErrNotFound)
	}
	return err
}

// imageConfig is an image's config with Docker's members besides OCI's.
type imageConfig struct {
	ocispec.Image
	docker struct {
		Healthcheck *core.HealthCheck
		Shell       []string
		OnBuild     []string
	}
}

func (s *Store) config(rec *imageRecord) (cfg imageConfig, err error) {
	body, err := content.ReadBlob(context.Background(), s.content, rec.Config)
	if err != nil {
		return cfg, fmt.Errorf("read config of image %s: %w: pull it again: %v", rec.ID, errdefs.ErrDataLoss, err) //nolint:errorlint // one class only
	}
	if err := cfg.read(body); err != nil {
		return cfg, fmt.Errorf("read config of image %s: %w: pull it again: %v", rec.ID, errdefs.ErrDataLoss, err) //nolint:errorlint // one class only
	}
	if rec.isModule() {
		cfg.ofModule()
	}
	return cfg, nil
}

// read decodes a config's JSON. It ignores a member of Docker's of another form: the image can run
// without it.
func (c *imageConfig) read(body []byte) error {
	if err := json.Unmarshal(body, &c.Image); err != nil {
		return err
	}
	var own struct {
		Config json.RawMessage `json:"config"`
	}
	if json.Unmarshal(body, &own) != nil || own.Config == nil || json.Unmarshal(own.Config, &c.docker) != nil {
		c.docker.Healthcheck, c.docker.Shell, c.docker.OnBuild = nil, nil, nil
	}
	return nil
}

// Tag implements core.Images.
func (s *Store) Tag(_ context.Context, owner core.Owner, source, target string) error {
	name := ""
	if target != "" {
		named, err := normalize(target, s.cfg.DefaultRegistry)
		if err != nil {
			return fmt.Errorf("tag: %w", err)
		}
		if _, ok := named.(reference.Digested); ok {
			return fmt.Errorf("tag %s: the new name must not have a digest: %w", target, errdefs.ErrInvalidArgument)
		}
		name = named.String()
	}
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.RLock()
	f, err := s.rec.find(owner, source)
	var c change
	if err == nil {
		rec := nameRecord{Manifest: f.first, Target: f.first, At: s.now()}
		if n, ok := s.rec.owner0(owner).names[f.name]; ok {
			rec.Target = n.Target
		}
		if name == "" {
			name, rec.Asked = "@"+f.first.String(), true
		}
		s.rec.setName(&c, owner, name, rec)
	}
	s.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("tag %s: %w", source, err)
	}
	return s.commit(&c)
}

// Pin keeps an image from collection, or no longer.
func (s *Store) Pin(_ context.Context, owner core.Owner, ref string, pinned bool) error {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.RLock()
	f, err := s.rec.find(owner, ref)
	var c change
	if err == nil && s.rec.owner0(owner).pins[f.id] != pinned {
		c.pin(owner, f.id, pinned)
	}
	s.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return s.commit(&c)
}

// Remove implements core.Images.
func (s *Store) Remove(ctx context.Context, owner core.Owner, ref string) error {
	s.write.Lock()
	s.mu.RLock()
	f, err := s.rec.find(owner, ref)
	var c change
	if err == nil {
		s.rec.dropNames(&c, owner, f)
	}
	s.mu.RUnlock()
	if err == nil {
		err = s.commit(&c)
	}
	s.write.Unlock()
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	_, err = collectUnused(ctx, s)
	return err
}

// dropNames removes one name, or all that an ID has. The digest name that came with a tag goes
// with the repository's last tag. Preconditions: s.mu.
func (r *records) dropNames(c *change, owner core.Owner, f found) {
	o := r.owner0(owner)
	names := o.namesOf(f.manifests)
	drop := map[string]bool{}
	for name := range names {
		if f.name == "" || name == f.name {
			drop[name] = true
		}
	}
	if f.name != "" {
		repo := repository(f.name)
		tagged := false
		for name := range names {
			tagged = tagged || (!drop[name] && !isDigestName(name) && repository(name) == repo)
		}
		for name, n := range names {
			if !tagged && isDigestName(name) && repository(name) == repo && !n.Asked {
				drop[name] = true
			}
		}
	}
	for name := range drop {
		c.dropName(owner, name)
	}
	if len(drop) == len(names) && o.pins[f.id] {
		c.pin(owner, f.id, false)
	}
}

// Prune implements core.Images.
func (s *Store) Prune(ctx context.Context, owner core.Owner, keep func(core.Image) bool) (uint64, error) {
	list, err := s.List(ctx, owner)
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	for _, img := range list {
		if img.Pinned || (keep != nil && keep(img)) {
			continue
		}
		s.write.Lock()
		s.mu.RLock()
		var c change
		for _, o := range s.rec.ownersOf(owner) {
			if f, err := s.rec.find(o, img.ID.String()); err == nil {
				s.rec.dropNames(&c, o, f)
			}
		}
		s.mu.RUnlock()
		err := s.commit(&c)
		s.write.Unlock()
		if err != nil {
			return 0, fmt.Errorf("prune: %w", err)
		}
	}
	freed, err := collectUnused(ctx, s)
	return freed + s.modules.pruneStrays(s), err
}
