package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/wasm"
)

// unpacking is a layer being unpacked into its directory.
type unpacking struct {
	repo   *registry.Repository // nil: the blob must be in the store
	blob   ocispec.Descriptor
	chain  digest.Digest
	diffID digest.Digest
	place  Place
	lower  []*unpacking // the layers below, nearest first
	flight *flight.Flight[string, *unpacking]
	slots  *queue  // of its image
	ticket *ticket // for one of the slots
	turn   turn    // among all images' layers
	budget *layer.Budget
	note   func(blob digest.Digest, status string, done int64)
	result Layer // set when the flight has ended without an error

	active atomic.Int64 // counts bytes received and unpacked
	queued atomic.Bool  // it is waiting for its turn
}

// startLayer joins or starts the unpacking of one layer. Call it for the layers of an image from
// the lowest up, and call Leave on each flight.
func (w *Worker) startLayer(ctx context.Context, u *unpacking) *flight.Flight[string, *unpacking] {
	f := w.layers.Join(ctx, u.place.Dir, func() *unpacking {
		u.ticket = u.slots.enqueue()
		u.turn = turn{q: w.turns, queued: &u.queued}
		return u
	}, w.runLayer)
	return f
}

func (w *Worker) runLayer(ctx context.Context, u *unpacking) error {
	defer u.ticket.leave()
	u.queued.Store(true)
	err := u.ticket.wait(ctx)
	u.queued.Store(false)
	if err != nil {
		return err
	}
	w.mu.Lock()
	have, ok := w.done[u.place.Dir]
	w.mu.Unlock()
	switch {
	case ok:
		u.result = have
		u.result.fetched = u.repo != nil && !w.hasBlob(ctx, u.blob) // it was removed since: it was damaged
		return w.onlyBlob(ctx, u)
	case u.place.Ready: // it is unpacked, only the blob may be missing
		u.result = Layer{Chain: u.chain, DiffID: u.diffID, Dir: u.place.Dir, Known: true}
		u.result.fetched = u.repo != nil && !w.hasBlob(ctx, u.blob)
		return w.onlyBlob(ctx, u)
	}
	if err := u.turn.acquire(ctx); err != nil {
		return err
	}
	defer u.turn.release()
	res, err := w.unpack(ctx, u)
	err = u.elsewhere(err)
	if err == nil {
		err = layer.WriteSums(w.layerDir(u.place.Dir), w.sumsFile(u.place.Dir))
	}
	if err != nil {
		_ = os.RemoveAll(w.layerDir(u.place.Dir))
		return err
	}
	u.result = Layer{Chain: u.chain, DiffID: u.diffID, Dir: u.place.Dir, Bytes: res.Bytes, Inodes: res.Inodes, Opaque: res.Opaque}
	w.mu.Lock()
	w.done[u.place.Dir] = u.result
	w.mu.Unlock()
	u.note(u.blob.Digest, "done", u.blob.Size)
	return nil
}

func (w *Worker) onlyBlob(ctx context.Context, u *unpacking) error {
	if !u.result.fetched {
		u.note(u.blob.Digest, "exists", u.blob.Size)
		return nil
	}
	f := w.startDownload(ctx, u, u.repo)
	defer f.Leave()
	return u.elsewhere(f.Wait(ctx))
}

// elsewhere explains that a layer is missing in the registry and that the manifest names other
// addresses for it. Such a layer is fetched from the registry like any other; addresses in a
// manifest are not used, because a node fetches only from configured hosts.
func (u *unpacking) elsewhere(err error) error {
	if !errdefs.IsNotFound(err) || len(u.blob.URLs) == 0 && !images.IsNonDistributable(u.blob.MediaType) {
		return err
	}
	where := "the image's maker has it"
	if len(u.blob.URLs) > 0 {
		where = fmt.Sprintf("its manifest says that it is at %.200q", u.blob.URLs[0])
	}
	return fmt.Errorf("layer %s (%.100s) is not in the registry, and %s: a node fetches layers from the image's registry alone; push the image to one of yours with this layer in it: %w",
		u.blob.Digest, u.blob.MediaType, where, err)
}

func (w *Worker) startDownload(ctx context.Context, u *unpacking, repo *registry.Repository) *flight.Flight[digest.Digest, *download] {
	f := w.blobs.Join(ctx, u.blob.Digest, func() *download { return newDownload(u.blob) },
		func(ctx context.Context, d *download) error { return w.fetch(ctx, repo, d) })
	f.State.onProgress(func(n int64) {
		w.did(u)
		u.note(u.blob.Digest, "downloading", n)
	})
	return f
}

func (w *Worker) hasBlob(ctx context.Context, desc ocispec.Descriptor) bool {
	info, err := w.store.Info(ctx, desc.Digest)
	return err == nil && info.Size == desc.Size
}

// unpack applies the layer from the store, or from the registry when the store does not have it
// or has it damaged.
func (w *Worker) unpack(ctx context.Context, u *unpacking) (layer.Result, error) {
	var stored error
	if _, err := w.store.Info(ctx, u.blob.Digest); err == nil {
		res, err := w.unpackStored(ctx, u)
		if err == nil || u.repo == nil || !contentsFault(err) || errdefs.IsNotImplemented(err) {
			return res, err
		}
		stored = err
		if err := w.store.Delete(ctx, u.blob.Digest); err != nil && !errdefs.IsNotFound(err) {
			return layer.Result{}, err
		}
	} else if u.repo == nil {
		return layer.Result{}, fmt.Errorf("unpack layer %s: its blob is not in the archive: %w", u.blob.Digest, errdefs.ErrInvalidArgument)
	}
	res, resumed, err := w.unpackStream(ctx, u, u.repo)
	other := w.another(u.blob.Digest, u.repo)
	if err != nil && (resumed || other != u.repo) && errdefs.IsDataLoss(err) && u.turn.again(ctx) == nil {
		// The damaged part may come from an earlier process or another repository.
		res, _, err = w.unpackStream(ctx, u, other)
	}
	if err != nil && stored != nil {
		err = fmt.Errorf("%w (and the blob in the store was damaged: %v)", err, stored) //nolint:errorlint // only one class is wanted
	}
	return res, err
}

func (w *Worker) unpackStored(ctx context.Context, u *unpacking) (layer.Result, error) {
	u.note(u.blob.Digest, "unpacking", 0)
	f, err := os.Open(w.blobFile(u.blob.Digest))
	if err != nil {
		return layer.Result{}, err
	}
	defer func() { _ = f.Close() }()
	return w.apply(ctx, u, f)
}

// unpackStream unpacks while the blob is received.
func (w *Worker) unpackStream(ctx context.Context, u *unpacking, repo *registry.Repository) (res layer.Result, resumed bool, err error) {
	f := w.startDownload(ctx, u, repo)
	defer f.Leave()
	in := f.State.follow(ctx)
	in.turn = &u.turn
	defer func() { _ = in.Close() }()
	res, err = w.apply(ctx, u, in)
	if err == nil || contentsFault(err) {
		// The digest tells whether the layer or the transfer is at fault.
		u.turn.release()
		if werr := f.Wait(ctx); werr != nil {
			err = werr
		}
	}
	f.State.mu.Lock()
	resumed = f.State.resumed
	f.State.mu.Unlock()
	return res, resumed, err
}

type reader interface{ Read(p []byte) (int, error) }

func (w *Worker) apply(ctx context.Context, u *unpacking, r reader) (layer.Result, error) {
	dir := w.layerDir(u.place.Dir)
	if err := os.RemoveAll(dir); err != nil {
		return layer.Result{}, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return layer.Result{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return layer.Result{}, err
	}
	opts := layer.Options{
		MaxBytes: w.settings.MaxLayerBytes, MinFree: w.settings.MinFree, Lower: u.lowerDirs(w),
		MaxEntries: w.settings.MaxLayerEntries, MinFreeInodes: w.settings.MinFreeInodes, Budget: u.budget,
	}
	in := noting{r, func() { w.did(u) }}
	var res layer.Result
	var err error
	if wasm.IsLayer(u.blob.MediaType) {
		res, err = applyModule(ctx, dir, in, u.blob, opts)
	} else {
		res, err = layer.Apply(ctx, dir, in, opts)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
			err = cause
		}
		return res, fmt.Errorf("layer %s: %w", u.blob.Digest, err)
	}
	if res.DiffID != u.diffID {
		return res, fmt.Errorf("layer %s: its unpacked digest is %s, and its image says %s: %w", u.blob.Digest, res.DiffID, u.diffID, errdefs.ErrDataLoss)
	}
	return res, nil
}

func (u *unpacking) lowerDirs(w *Worker) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		var dirs []string
		for _, l := range u.lower {
			opaque := l.place.Opaque
			if !l.place.Ready {
				if err := u.turn.without(ctx, func() error { return l.flight.Wait(ctx) }); err != nil {
					return nil, fmt.Errorf("wait for the layer below: %w", err)
				}
				opaque = l.flight.State.result.Opaque
			}
			dirs = append(dirs, w.layerDir(l.place.Dir))
			if opaque {
				break
			}
		}
		return dirs, nil
	}
}
