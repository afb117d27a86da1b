package worker

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/registry"
)

// Pulls share the blobs that they have in common, and a blob is fetched from the repository of
// the first pull. So that a bad repository does not hold up the other pulls, each pull offers its
// own: a transfer that fails, or that is slow while another repository is on offer, continues
// from there.

const (
	// patience is how long a transfer may be slow while another repository is on offer.
	patience = 5 * time.Second
	// briskRate is the rate below which a transfer is slow, in bytes per second.
	briskRate = 64 << 10
	// maxOvertakes is how often a transfer is ended for being slow: all repositories may be slow.
	maxOvertakes = 4
)

// overtakenError is the cause of the end of a transfer that another repository continues.
type overtakenError struct{ by string }

func (e *overtakenError) Error() string { return "it was slow, and " + e.by + " has it too" }

// Unwrap returns the class.
func (e *overtakenError) Unwrap() error { return errdefs.ErrUnavailable }

// offer allows blobs to be fetched from repo too, until withdraw is called.
func (w *Worker) offer(repo *registry.Repository, blobs []ocispec.Descriptor) (withdraw func()) {
	if repo == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range blobs {
		w.offers[b.Digest] = append(w.offers[b.Digest], repo)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, b := range blobs {
			list := w.offers[b.Digest]
			if i := slices.Index(list, repo); i >= 0 {
				list = slices.Delete(list, i, i+1)
			}
			if w.offers[b.Digest] = list; len(list) == 0 {
				delete(w.offers, b.Digest)
			}
		}
	}
}

// another returns the repository that follows repo among those on offer with another name, or
// repo itself when there is none.
func (w *Worker) another(blob digest.Digest, repo *registry.Repository) *registry.Repository {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.offers[blob]
	at := slices.Index(list, repo) + 1
	for i := range list {
		if r := list[(at+i)%len(list)]; r.Name() != repo.Name() {
			return r
		}
	}
	return repo
}

// hurry ends a transfer from repo that is slow while another repository is on offer, until stop
// is called. got counts the bytes received.
func (w *Worker) hurry(ctx context.Context, blob digest.Digest, repo *registry.Repository, got *atomic.Int64) (_ context.Context, stop func()) {
	every := w.settings.Patience
	if every == 0 {
		every = patience
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ticker := time.NewTicker(every)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				n := got.Swap(0)
				if r := w.another(blob, repo); r != repo && float64(n) < briskRate*every.Seconds() {
					cancel(&overtakenError{r.Name()})
					return
				}
			}
		}
	}()
	return ctx, func() {
		ticker.Stop()
		cancel(nil)
	}
}

// overtaken returns err, or an overtakenError if ctx was ended for another repository.
func overtaken(ctx context.Context, blob digest.Digest, repo *registry.Repository, err error) error {
	if e, ok := context.Cause(ctx).(*overtakenError); ok && err != nil { //nolint:errorlint // the cause is that very value
		return fmt.Errorf("fetch blob %s of %s: %w", blob, repo.Name(), e)
	}
	return err
}
