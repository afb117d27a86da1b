package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/registry"
)

// PushJob asks for an image of the store to be stored in a registry, or, with Login, whether a
// registry takes the credentials.
type PushJob struct {
	Ref      string             `json:"ref"` // full, with a tag
	Manifest ocispec.Descriptor `json:"manifest,omitzero"`
	Login    string             `json:"login,omitempty"` // a registry's host

	Credentials registry.Credentials            `json:"credentials"`
	Auths       map[string]registry.Credentials `json:"auths,omitempty"`
}

// Push does job. Its content must be leased already.
func (w *Worker) Push(ctx context.Context, agent Agent, job PushJob) error {
	opts := w.registryOptions(PullJob{Credentials: job.Credentials, Auths: job.Auths})
	if job.Login != "" {
		if err := registry.Login(ctx, job.Login, opts); err != nil {
			return fmt.Errorf("log in to %s: %w", job.Login, err)
		}
		return nil
	}
	if err := w.push(ctx, agent, job, opts); err != nil {
		return fmt.Errorf("push %s: %w", job.Ref, err)
	}
	return nil
}

func (w *Worker) push(ctx context.Context, agent Agent, job PushJob, opts registry.Options) error {
	named, err := reference.ParseNormalizedNamed(job.Ref)
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	repo, err := registry.Open(ctx, named, opts)
	if err != nil {
		return err
	}
	body, err := content.ReadBlob(ctx, w.store, job.Manifest)
	if err != nil {
		return fmt.Errorf("read its manifest: %w", err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(body, &manifest); err != nil {
		return fmt.Errorf("read its manifest: %w: %w", errdefs.ErrDataLoss, err)
	}
	var total, done int64
	blobs := append([]ocispec.Descriptor{manifest.Config}, manifest.Layers...)
	for _, b := range blobs {
		total += b.Size
		agent.Progress(core.PullProgress{Blob: b.Digest, Status: "waiting", Total: b.Size})
	}
	for _, b := range blobs {
		status := "pushed"
		existed, err := repo.Push(ctx, b, func() (io.ReadCloser, error) { return w.sent(ctx, agent, b) })
		if err != nil {
			return err
		}
		if existed {
			status = "exists"
		}
		done += b.Size
		agent.Progress(core.PullProgress{Blob: b.Digest, Status: status, Done: b.Size, Total: b.Size})
		agent.Progress(core.PullProgress{Status: "uploading", Done: done, Total: total})
	}
	return repo.PushManifest(ctx, selector(named), job.Manifest.MediaType, body)
}

// sent opens a blob that is sent, and tells how far it is.
func (w *Worker) sent(ctx context.Context, agent Agent, desc ocispec.Descriptor) (io.ReadCloser, error) {
	at, err := w.store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, err)
	}
	return &sentBlob{Reader: io.NewSectionReader(at, 0, desc.Size), Closer: at, tell: func(n int64) {
		agent.Progress(core.PullProgress{Blob: desc.Digest, Status: "uploading", Done: n, Total: desc.Size})
	}}, nil
}

type sentBlob struct {
	io.Reader
	io.Closer
	tell           func(int64)
	read, reported int64
}

// reportEvery is how many bytes of a blob are sent between two messages about it.
const reportEvery = 4 << 20

// Read implements io.Reader.
func (b *sentBlob) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.read += int64(n); b.read-b.reported >= reportEvery {
		b.reported = b.read
		b.tell(b.read)
	}
	return n, err
}
