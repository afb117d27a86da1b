package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/registry"
)

// download is a blob being fetched into the content store. Users of its bytes read the file while
// it grows.
type download struct {
	desc    ocispec.Descriptor
	mu      sync.Mutex // guards have, files, ended, err, resumed, watch
	changed *sync.Cond
	have    int64
	files   []string // the files with the bytes: the growing one, then the complete one
	ended   bool
	err     error
	resumed bool // an earlier process has fetched a part of it
	watch   []func(done int64)
}

func newDownload(desc ocispec.Descriptor) *download {
	d := &download{desc: desc}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// set calls f with mu held and wakes the blob's followers.
func (d *download) set(f func()) {
	d.mu.Lock()
	f()
	have, watch := d.have, d.watch
	d.changed.Broadcast()
	d.mu.Unlock()
	for _, w := range watch {
		w(have)
	}
}

func (d *download) onProgress(f func(done int64)) {
	d.mu.Lock()
	d.watch = append(d.watch, f)
	d.mu.Unlock()
}

func ingestRef(dgst digest.Digest) string { return downloadRef + dgst.String() }

const downloadRef = "blob-"

// IsDownload reports whether an unfinished blob comes from a registry, by its name.
func IsDownload(ref string) bool { return strings.HasPrefix(ref, downloadRef) }

// IngestDir returns the directory of an unfinished blob below the image directory root.
func IngestDir(root string, dgst digest.Digest) string {
	return filepath.Join(root, ContentDir, "ingest", digest.FromString(ingestRef(dgst)).Encoded())
}

// ingestFile returns the content store's file of an unfinished blob. TestFollowsTheIngest checks
// it.
func (w *Worker) ingestFile(ref string) string {
	return filepath.Join(w.root, ContentDir, "ingest", digest.FromString(ref).Encoded(), "data")
}

func (w *Worker) blobFile(dgst digest.Digest) string {
	return filepath.Join(w.root, ContentDir, "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

// fetch fetches a blob into the store, continuing where an earlier attempt stopped.
func (w *Worker) fetch(ctx context.Context, repo *registry.Repository, d *download) (err error) {
	defer func() { d.set(func() { d.ended, d.err = true, err }) }()
	if w.settings.MinFree > 0 {
		if err := layer.CheckFree(w.root, w.settings.MinFree+d.desc.Size); err != nil {
			return fmt.Errorf("fetch blob %s: %w", d.desc.Digest, err)
		}
	}
	cw, err := content.OpenWriter(ctx, w.store, content.WithRef(ingestRef(d.desc.Digest)), content.WithDescriptor(d.desc))
	if errdefs.IsAlreadyExists(err) {
		d.set(func() { d.have, d.files = d.desc.Size, []string{w.blobFile(d.desc.Digest)} })
		return nil
	}
	if err != nil {
		return fmt.Errorf("fetch blob %s: %w", d.desc.Digest, classifyDisk(err))
	}
	defer func() { _ = cw.Close() }()
	st, err := cw.Status()
	if err != nil {
		return err
	}
	if st.Offset > d.desc.Size {
		if err := cw.Truncate(0); err != nil {
			return err
		}
		st.Offset = 0
	}
	d.set(func() {
		d.have, d.resumed = st.Offset, st.Offset > 0
		d.files = []string{w.ingestFile(ingestRef(d.desc.Digest)), w.blobFile(d.desc.Digest)}
	})
	if err := w.receive(ctx, repo, cw, d); err != nil {
		return err
	}
	err = cw.Commit(ctx, d.desc.Size, d.desc.Digest)
	if err == nil || errdefs.IsAlreadyExists(err) {
		return nil
	}
	if errdefs.IsFailedPrecondition(err) {
		// A wrong byte in the kept part would spoil every later attempt.
		got := cw.Digest()
		_ = cw.Close()
		_ = w.store.Abort(ctx, ingestRef(d.desc.Digest))
		return fmt.Errorf("fetch blob %s of %s: content is %s: %w", d.desc.Digest, repo.Name(), got, errdefs.ErrDataLoss)
	}
	return fmt.Errorf("fetch blob %s: %w", d.desc.Digest, classifyDisk(err))
}

// receive copies until the blob is complete. When the connection breaks it asks for the rest, as
// long as each attempt brings something, and a few times when none does. When one repository
// refuses or is slow, it continues with another offered one. mu is not needed: only this goroutine
// changes how much it has.
func (w *Worker) receive(ctx context.Context, repo *registry.Repository, cw content.Writer, d *download) error {
	retries := w.settings.Retries
	if retries == 0 {
		retries = 4
	}
	refused := map[string]bool{}
	overtakes := 0
	for failed := 0; d.have < d.desc.Size; {
		before := d.have
		err := w.receiveOnce(ctx, repo, cw, d, overtakes < maxOvertakes)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		var refusal *registry.StatusError
		var slow *overtakenError
		if final := !errdefs.IsUnavailable(err) || errors.As(err, &refusal); final { // the transport has already repeated the request
			refused[repo.Name()] = true
		}
		if errors.As(err, &slow) {
			overtakes++
		}
		next := w.another(d.desc.Digest, repo)
		switch {
		case refused[next.Name()]: // another offer may be the same repository
			return err
		case next != repo:
			repo = next
			d.set(func() { d.resumed = true }) // the rest may not match the first part
		}
		if d.have > before && !registry.IsSlow(err) {
			failed = 0
		} else if failed++; failed > retries {
			return err
		}
		backoff := w.settings.Backoff
		if backoff == 0 {
			backoff = 250 * time.Millisecond
		}
		timer := time.NewTimer(backoff << min(failed, 6))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

// receiveOnce asks one repository for the missing bytes. mu is not needed: only this goroutine
// changes how much it has.
func (w *Worker) receiveOnce(ctx context.Context, repo *registry.Repository, cw content.Writer, d *download, hurried bool) error {
	var got atomic.Int64
	if hurried {
		var stop func()
		ctx, stop = w.hurry(ctx, d.desc.Digest, repo, &got)
		defer stop()
	}
	body, err := repo.Blob(ctx, d.desc, d.have)
	if err != nil {
		return overtaken(ctx, d.desc.Digest, repo, err)
	}
	defer func() { _ = body.Close() }()
	buf := make([]byte, 128<<10)
	for {
		n, err := body.Read(buf)
		got.Add(int64(n))
		if d.have+int64(n) > d.desc.Size {
			return fmt.Errorf("fetch blob %s of %s: more than the %d bytes of its manifest: %w", d.desc.Digest, repo.Name(), d.desc.Size, errdefs.ErrDataLoss)
		}
		if n > 0 {
			if _, werr := cw.Write(buf[:n]); werr != nil {
				return fmt.Errorf("fetch blob %s: %w", d.desc.Digest, classifyDisk(werr))
			}
			d.set(func() { d.have += int64(n) })
		}
		switch {
		case errors.Is(err, io.EOF) && d.have < d.desc.Size:
			return fmt.Errorf("fetch blob %s of %s: ended after %d of %d bytes: %w", d.desc.Digest, repo.Name(), d.have, d.desc.Size, errdefs.ErrUnavailable)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return overtaken(ctx, d.desc.Digest, repo, err)
		}
	}
}

func classifyDisk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", errdefs.ErrResourceExhausted, err)
	}
	return err
}

// follower reads a download's bytes while they arrive.
type follower struct {
	d    *download
	ctx  context.Context //nolint:containedctx // a reader has no other way
	file *os.File
	pos  int64
	stop func() bool
	turn *turn // given up while it waits; nil when there is none
}

func (d *download) follow(ctx context.Context) *follower {
	f := &follower{d: d, ctx: ctx}
	f.stop = context.AfterFunc(ctx, func() {
		d.mu.Lock()
		d.changed.Broadcast()
		d.mu.Unlock()
	})
	return f
}

// await waits until there is something to read, or nothing more will come.
func (f *follower) await() error {
	d := f.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.have <= f.pos && !d.ended && f.ctx.Err() == nil {
		d.changed.Wait()
	}
	return nil
}

// Read implements io.Reader.
func (f *follower) Read(p []byte) (int, error) {
	d := f.d
	d.mu.Lock()
	if d.have <= f.pos && !d.ended && f.ctx.Err() == nil {
		d.mu.Unlock()
		if err := f.turn.without(f.ctx, f.await); err != nil {
			return 0, err
		}
		d.mu.Lock()
	}
	have, ended, derr, names := d.have, d.ended, d.err, d.files
	d.mu.Unlock()
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	if derr != nil {
		return 0, derr
	}
	if have <= f.pos && ended {
		return 0, io.EOF
	}
	if f.file == nil {
		var err error
		for _, name := range names {
			if f.file, err = os.Open(name); err == nil {
				break
			}
		}
		if err != nil {
			return 0, err
		}
	}
	n, err := f.file.ReadAt(p[:min(int64(len(p)), have-f.pos)], f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// Close implements io.Closer.
func (f *follower) Close() error {
	f.stop()
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
