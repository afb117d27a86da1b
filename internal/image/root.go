package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/fromroot"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/worker"
)

// ImportRoot implements core.ImageTransfers. The layer is compressed into a file without a name, and the image is then
// imported like any other: an error or a crash leaves nothing of it.
func (s *Store) ImportRoot(ctx context.Context, owner core.Owner, root io.Reader, opts core.RootImport) (core.Image, error) {
	img, err := importRoot(ctx, s, owner, root, opts)
	if err != nil {
		return core.Image{}, fmt.Errorf("import root file system: %w", err)
	}
	return img, nil
}

func importRoot(ctx context.Context, s *Store, owner core.Owner, root io.Reader, opts core.RootImport) (core.Image, error) {
	made := fromroot.Image{Message: opts.Message, Changes: opts.Changes, Created: s.now().UTC()}
	if opts.Name != "" {
		named, err := normalize(opts.Name, s.cfg.DefaultRegistry)
		if err != nil {
			return core.Image{}, err
		}
		if _, ok := named.(reference.Digested); ok {
			return core.Image{}, fmt.Errorf("image name %q: a new image has no digest yet: %w", opts.Name, errdefs.ErrInvalidArgument)
		}
		made.Name = named.String()
	}
	if opts.Platform != "" {
		p, err := platforms.Parse(opts.Platform)
		if err != nil || p.OS != "linux" {
			return core.Image{}, fmt.Errorf("platform %q is not linux/ARCHITECTURE[/VARIANT]: %w", opts.Platform, errdefs.ErrInvalidArgument)
		}
		made.Architecture, made.Variant = p.Architecture, p.Variant
	}
	file, err := unnamed(filepath.Join(s.root, worker.ContentDir, "ingest"))
	if err != nil {
		return core.Image{}, err
	}
	defer func() { _ = file.Close() }()
	spool := &spooled{counted{w: file, dir: s.root, minFree: s.cfg.MinFreeBytes}, file}
	pr, pw := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := fromroot.Archive(pw, &within{ctx, root}, spool, made)
		ended <- err
		_ = pw.CloseWithError(err)
	}()
	list, err := s.Import(ctx, owner, pr, core.ImportOptions{})
	_ = pr.Close()
	if err != nil {
		select {
		case aerr := <-ended:
			if aerr != nil && !errors.Is(aerr, io.ErrClosedPipe) {
				return core.Image{}, rootFault(aerr) // the importer's error says only that the archive ended early
			}
		default:
		}
		return core.Image{}, err
	}
	if len(list) != 1 {
		return core.Image{}, fmt.Errorf("the import made %d images: %w", len(list), errdefs.ErrInternal)
	}
	return list[0], nil
}

// rootFault gives an error about a root file system its class: the bytes are at fault unless something else is.
func rootFault(err error) error {
	err = fullDisk(err)
	if errdefs.IsResourceExhausted(err) || errdefs.IsInvalidArgument(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
}

// spooled is a file that fills no disk.
type spooled struct {
	counted
	file io.ReadSeeker
}

// Read implements io.Reader.
func (s *spooled) Read(p []byte) (int, error) { return s.file.Read(p) }

// Seek implements io.Seeker.
func (s *spooled) Seek(offset int64, whence int) (int64, error) { return s.file.Seek(offset, whence) }

// within is a reader that ends with a context.
type within struct {
	ctx context.Context //nolint:containedctx // a reader has no other way
	r   io.Reader
}

// Read implements io.Reader.
func (w *within) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.r.Read(p)
}

// Resolve implements core.ImageTransfers.
func (s *Store) Resolve(ctx context.Context, ref string, opts core.PullOptions) (core.RemoteImage, error) {
	img, err := askRegistry(ctx, s, ref, worker.PullJob{Resolve: true}, opts)
	if err != nil {
		return core.RemoteImage{}, err
	}
	return core.RemoteImage{Target: img.Target, Platforms: img.Platforms}, nil
}

// Tags implements core.ImageTransfers.
func (s *Store) Tags(ctx context.Context, repo string, opts core.PullOptions) ([]string, error) {
	img, err := askRegistry(ctx, s, repo, worker.PullJob{Tags: true}, opts)
	return img.Tags, err
}

// askRegistry runs a job that stores nothing.
func askRegistry(ctx context.Context, s *Store, ref string, job worker.PullJob, opts core.PullOptions) (worker.Image, error) {
	named, err := normalize(ref, s.cfg.DefaultRegistry)
	if err != nil {
		return worker.Image{}, fmt.Errorf("ask a registry: %w", err)
	}
	if job.Auths, err = auths(s); err != nil {
		return worker.Image{}, fmt.Errorf("ask the registry of %s: %w", named, err)
	}
	job.Ref = named.String()
	if opts.Host == "" || registry.SameHost(opts.Host, reference.Domain(named)) {
		job.Credentials = registry.Credentials{Username: opts.Username, Password: opts.Password, Token: opts.Token, Bearer: opts.Bearer}
	}
	l := s.newLease(nil)
	defer l.release()
	return s.runner.Pull(ctx, l, job)
}
