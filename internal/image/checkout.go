package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/worker"
	"github.com/longshore/longshore/internal/weaken"
)

// checkout is a container's root filesystem: checkouts/<id>/ with its record and, unless it is
// read-only, upper/ and work/. Nothing of it is synced, because it is worthless after a power
// cut.
type checkout struct {
	Manifest digest.Digest   `json:"manifest"`
	Chains   []digest.Digest `json:"chains"`
	Dirs     []string        `json:"dirs"` // lowest first
	ReadOnly bool            `json:"read_only,omitempty"`
	Project  uint32          `json:"project,omitempty"` // of the quota that limits the layer; 0 is none

	size size
}

const recordFile = "record.json"

// isContainerID reports whether a container may be called so: directories get its name.
func isContainerID(id core.ID) bool { return core.IsName(string(id), "_.-", 128) }

func (r *records) layerPath(dir string) string { return filepath.Join(r.root, worker.LayerDir, dir) }

func (r *records) checkoutPath(id core.ID) string {
	return filepath.Join(r.root, checkoutDir, string(id))
}

// Checkout implements core.Images. Another checkout of the same image for the same container
// returns the first one.
func (s *Store) Checkout(_ context.Context, req core.CheckoutRequest) (core.Checkout, error) {
	fail := func(err error) (core.Checkout, error) {
		return core.Checkout{}, fmt.Errorf("check out image %s for %s: %w", req.Image, req.Container.Short(), err)
	}
	if !isContainerID(req.Container) {
		return fail(fmt.Errorf("container %q: %w", req.Container, errdefs.ErrInvalidArgument))
	}
	s.mu.Lock()
	rec := s.rec.imageByID(req.Image)
	old := s.checkouts[req.Container]
	var err error
	var co, mended *checkout
	switch {
	case old != nil && rec != nil && old.Manifest == "":
		// Its record was damaged. The container's files still exist.
		co = old
		mended, err = s.rec.newCheckout(rec, req.ReadOnly)
	case old != nil && req.Durable && old.Manifest != "" && old.ReadOnly == req.ReadOnly && (rec == nil || old.Manifest != rec.Manifest.Digest):
		co = old // its image was removed or replaced since; its layers stay as long as the checkout
	case old != nil && (rec == nil || old.Manifest != rec.Manifest.Digest || old.ReadOnly != req.ReadOnly):
		err = fmt.Errorf("the container has another root filesystem: %w", errdefs.ErrAlreadyExists)
	case old != nil:
		co = old
		mended = s.rec.mended(rec, co)
	case rec == nil:
		err = errdefs.ErrNotFound
	case rec.Artifact != "" && !req.ReadOnly:
		err = fmt.Errorf("it is an artifact (%.100s), which has files and no root file system; mount it as a volume: %w", rec.Artifact, errdefs.ErrInvalidArgument)
	default:
		if co, err = s.rec.newCheckout(rec, req.ReadOnly); err == nil {
			s.checkouts[req.Container] = co // from now on its layers are not collected
		}
	}
	s.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	switch {
	case old == nil:
		err = makeCheckout(s, req, co)
	case mended != nil:
		mended.Project = co.Project
		if err = s.rec.writeCheckout(req.Container, mended); err == nil {
			s.mu.Lock()
			co.Manifest, co.Chains, co.Dirs, co.ReadOnly = mended.Manifest, mended.Chains, mended.Dirs, mended.ReadOnly
			s.mu.Unlock()
		}
	}
	var out core.Checkout
	if err == nil && rec != nil && rec.Artifact == "" {
		var cfg imageConfig
		if cfg, err = s.config(rec); err == nil {
			err = s.checkPlatform(cfg.Platform)
		}
		if err == nil && old == nil { // an earlier release stored images without this check; their containers stay
			err = worker.CheckVolumes(cfg.Config)
		}
		out.Config = cfg.Image
	}
	if err != nil {
		if old == nil {
			_ = s.Discard(context.Background(), req.Container)
		}
		return fail(err)
	}
	out.Mounts = s.rec.mounts(req, co)
	return out, nil
}

// imageByID returns the newest complete image with this ID, or else an incomplete one.
// Preconditions: s.mu is held.
func (r *records) imageByID(id digest.Digest) *imageRecord {
	var best *imageRecord
	for _, rec := range r.images {
		if rec.ID != id {
			continue
		}
		if best == nil || (rec.Pulled.After(best.Pulled) && r.whole(rec.Manifest.Digest)) || !r.whole(best.Manifest.Digest) {
			best = rec
		}
	}
	return best
}

// newCheckout returns a checkout with the image's layers. Preconditions: s.mu is held.
func (r *records) newCheckout(rec *imageRecord, readOnly bool) (*checkout, error) {
	co := &checkout{Manifest: rec.Manifest.Digest, Chains: rec.Chains, ReadOnly: readOnly}
	for _, c := range rec.Chains {
		if !r.layerThere(c) {
			return nil, fmt.Errorf("layer %s is missing: pull it again: %w", c, errdefs.ErrDataLoss)
		}
		l := r.layers[c]
		if l.Opaque {
			co.Dirs = nil // it hides everything below
		}
		co.Dirs = append(co.Dirs, l.Dir)
	}
	return co, nil
}

// mended returns the checkout of a container with the directories that its layers have now, if one
// of them was damaged and unpacked again since; otherwise nil. Preconditions: s.mu is held.
func (r *records) mended(rec *imageRecord, co *checkout) *checkout {
	now, err := r.newCheckout(rec, co.ReadOnly)
	if err != nil || slices.Equal(now.Dirs, co.Dirs) {
		return nil
	}
	return now
}

func makeCheckout(s *Store, req core.CheckoutRequest, co *checkout) error {
	r := s.rec
	dir := r.checkoutPath(req.Container)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if req.Disk > 0 && s.quotas != nil { // before the first file, which gets the project of its directory
		id, err := s.quotas.Limit(dir, req.Disk)
		if err != nil {
			return err
		}
		co.Project = id
	}
	if !co.ReadOnly || len(co.Dirs) == 0 || co.alone() {
		if err := r.makeUpper(dir, co, req); err != nil {
			return err
		}
	}
	if err := r.writeCheckout(req.Container, co); err != nil || !req.Durable {
		return err
	}
	return syncAll(filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, recordFile), dir, filepath.Dir(dir))
}

// syncAll syncs files and directories; those that do not exist are left out.
func syncAll(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeCheckout writes a checkout's record.
func (r *records) writeCheckout(container core.ID, co *checkout) error {
	dir := r.checkoutPath(container)
	data, err := json.Marshal(co)
	if err != nil {
		return err
	}
	// It is renamed into place, so that a crash leaves a complete record or none.
	tmp := filepath.Join(dir, recordFile+".new")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, recordFile))
}

// alone reports whether the checkout is one layer, read-only. Even that is an overlay, because a
// container that may change its mounts could make a bind mount of the layer writable, and other
// containers use the layer too; an overlay without an upper directory cannot be written to. The
// kernel does not mount an overlay of a single layer, so an empty one is put below it.
func (co *checkout) alone() bool {
	return co.ReadOnly && len(co.Dirs) == 1 && !weaken.Off(weaken.BareLayer)
}

// makeUpper makes the container's own layer. Its root directory gets the attributes of the image's.
// Its owners are written as host ids of the user namespace and need no mapping.
func (r *records) makeUpper(dir string, co *checkout, req core.CheckoutRequest) error {
	upper := filepath.Join(dir, "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o700); err != nil {
		return err
	}
	mode, uid, gid := fs.FileMode(0o755), 0, 0
	if len(co.Dirs) > 0 {
		fi, err := os.Lstat(r.layerPath(co.Dirs[len(co.Dirs)-1]))
		if err != nil {
			return err
		}
		mode = fi.Mode()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(st.Uid), int(st.Gid)
		}
	}
	uid, gid = mappedID(req.UIDs, uid), mappedID(req.GIDs, gid)
	if err := os.Lchown(upper, uid, gid); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return os.Chmod(upper, mode)
}

// mappedID returns the host id for an id in a user namespace with these ranges.
func mappedID(ranges []core.IDRange, id int) int {
	for _, r := range ranges {
		if uint64(id) >= uint64(r.Container) && uint64(id) < uint64(r.Container)+uint64(r.Size) {
			return id - int(r.Container) + int(r.Host)
		}
	}
	return id
}

// mounts returns the mounts that make up the root filesystem.
func (r *records) mounts(req core.CheckoutRequest, co *checkout) []core.Mount {
	dir := r.checkoutPath(req.Container)
	upper := filepath.Join(dir, "upper")
	var lower []string
	for _, d := range slices.Backward(co.Dirs) {
		lower = append(lower, r.layerPath(d))
	}
	bind := func(source string) []core.Mount {
		access := "rw"
		if co.ReadOnly {
			access = "ro"
		}
		return []core.Mount{{Type: "bind", Source: source, Options: []string{"rbind", access}}}
	}
	switch {
	case len(lower) == 0:
		return bind(upper)
	case co.alone():
		lower = append(lower, upper)
	case co.ReadOnly && len(lower) == 1:
		return bind(lower[0])
	}
	// An upper directory is mounted once, so nothing needs an index.
	opts := []string{"lowerdir=" + strings.Join(lower, ":"), "index=off"}
	if !co.ReadOnly {
		opts = append([]string{"upperdir=" + upper, "workdir=" + filepath.Join(dir, "work")}, opts...)
		if !req.Durable {
			// volatile: no sync ever, not even of the whole file system at the unmount. A boot
			// discards the upper directory in any case.
			opts = append(opts, "volatile")
		}
	} else {
		opts = append(opts, "ro")
	}
	return []core.Mount{{Type: "overlay", Source: "overlay", Options: opts, UIDs: req.UIDs, GIDs: req.GIDs}}
}

// Discard implements core.Images.
func (s *Store) Discard(ctx context.Context, container core.ID) error {
	if !isContainerID(container) {
		return fmt.Errorf("discard root of %q: %w", container, errdefs.ErrInvalidArgument)
	}
	s.mu.Lock()
	co := s.checkouts[container]
	s.mu.Unlock()
	if co == nil {
		return nil
	}
	if co.Project != 0 && s.quotas != nil {
		if err := s.quotas.Release(co.Project); err != nil {
			s.log.WarnContext(ctx, "the limit of a removed layer stays in the file system's quotas", "project", co.Project, "container", container, "error", err)
		}
	}
	if err := s.trash.add(s.rec.checkoutPath(container)); err != nil {
		return fmt.Errorf("discard root of %s: %w", container, err)
	}
	s.mu.Lock()
	delete(s.checkouts, container)
	s.mu.Unlock()
	s.trash.empty()
	return nil
}

// Checkouts implements core.Images.
func (s *Store) Checkouts(context.Context) ([]core.ID, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	ids := make([]core.ID, 0, len(s.checkouts))
	for id := range s.checkouts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// loadCheckouts reads the checkouts of an earlier agent. One that lost its record in a crash is
// listed too, so that it gets discarded. mu is not needed: nobody else has the Store yet.
func loadCheckouts(s *Store) error {
	entries, err := os.ReadDir(filepath.Join(s.root, checkoutDir))
	if err != nil {
		return fmt.Errorf("read checkouts: %w", err)
	}
	for _, e := range entries {
		co := &checkout{}
		data, err := os.ReadFile(filepath.Join(s.root, checkoutDir, e.Name(), recordFile))
		if err == nil {
			err = json.Unmarshal(data, co)
		}
		if err != nil {
			s.log.Warn("a container's root filesystem has no readable record; it will be discarded", "container", e.Name(), "error", err)
			co = &checkout{}
		}
		s.checkouts[core.ID(e.Name())] = co
	}
	return nil
}
