package podcheckpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Images has the parts of a node that a container of an image with a checkpoint needs.
type Images struct {
	Get func(ctx context.Context, ref string) (core.Image, error)
	// Export writes an image as an OCI archive.
	Export func(ctx context.Context, ref string, w io.Writer) error
	// Permitted says that the operator permits images with checkpoints.
	Permitted bool
}

// source is the checkpoint that a container's image names.
type source struct {
	path  string     // of a file
	image core.Image // or of its only layer
}

// source returns the checkpoint that the image of a request names: an absolute path, or an image with an annotation of CRI-O or containerd.
// nil for an ordinary image.
func (i Images) source(ctx context.Context, ref string) (*source, error) {
	if filepath.IsAbs(ref) {
		return &source{path: ref}, nil
	}
	img, err := i.Get(ctx, ref)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the creation of the container reports a missing image
	}
	for _, key := range core.CheckpointAnnotations() {
		if img.Annotations[key] == "" {
			continue
		}
		switch {
		case !i.Permitted:
			return nil, fmt.Errorf("image %s has a checkpoint (annotation %s), and its processes would run as it has them: the node's configuration does not permit that (checkpoint.images): %w", ref, key, errdefs.ErrPermissionDenied)
		case len(img.Layers) != 1:
			return nil, invalid.Errorf("image %s has a checkpoint, and %d layers in place of one", ref, len(img.Layers))
		}
		return &source{image: img}, nil
	}
	return nil, nil //nolint:nilnil // no checkpoint
}

// Continue creates a container that continues a checkpoint when it is started, if the image of the request is one; if not, it returns no
// response. The command, the arguments, the directory and the user of the request must be those of the checkpoint, or absent.
func (c *Calls) Continue(ctx context.Context, req *v1.CreateContainerRequest) (*v1.CreateContainerResponse, error) {
	if c.Images.Get == nil {
		return nil, nil //nolint:nilnil // an ordinary image
	}
	what := "create container " + req.GetConfig().GetMetadata().GetName()
	from, err := c.Images.source(ctx, req.GetConfig().GetImage().GetImage())
	if err == nil && from == nil {
		return nil, nil //nolint:nilnil // an ordinary image
	}
	if err == nil {
		if err := Able(ctx, c.Verbs, c.Why, what); err != nil {
			return nil, err
		}
		var ct core.Container
		if ct, err = c.continues(ctx, req, from); err == nil {
			return &v1.CreateContainerResponse{ContainerId: string(ct.ID)}, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", what, err)
}

func (c *Calls) continues(ctx context.Context, req *v1.CreateContainerRequest, from *source) (core.Container, error) {
	in, err := c.open(ctx, from)
	if err != nil {
		return core.Container{}, fmt.Errorf("image %s: %w", req.GetConfig().GetImage().GetImage(), err)
	}
	defer func() { _ = in.Close() }()
	m := in.Meta()
	if m.Owner != core.OwnerCRI {
		return core.Container{}, invalid.Errorf("the checkpoint is of a container of %s", m.Owner)
	}
	was, err := c.Config(m.Data)
	if err != nil {
		return core.Container{}, invalid.Errorf("the checkpoint's record: %v", err)
	}
	if _, err := c.Images.Get(ctx, m.Image); err != nil {
		return core.Container{}, fmt.Errorf("the checkpoint is of a container of image %s (%s), which must be pulled before: %v: %w", m.ImageName, m.Image, err, errdefs.ErrFailedPrecondition) //nolint:errorlint // one class
	}
	req, ok := proto.Clone(req).(*v1.CreateContainerRequest)
	if !ok {
		return core.Container{}, errors.New("a clone of another type")
	}
	fill(req.GetConfig(), was, m.Image)
	if err := c.sameProcess(m, req.GetConfig(), "metadata.name", "envs"); err != nil {
		return core.Container{}, err
	}
	ct, same, err := c.Create(ctx, req)
	if same && ct.LastCheckpoint() != nil {
		return ct, nil
	}
	if err == nil && same && ct.State != core.ContainerCreated {
		return ct, fmt.Errorf("it exists and continues no checkpoint: remove it first: %w", errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return ct, err
	}
	if err := c.Verbs.Prepare(ctx, ct.ID, in, core.RestoreOptions{TCP: core.TCPClose}); err != nil {
		return ct, errors.Join(err, c.Engine.RemoveContainer(context.WithoutCancel(ctx), ct.ID, engine.RemoveOptions{Force: true, Request: c.Request}))
	}
	return ct, nil
}

// fill completes the config of a container by that of a checkpoint.
func fill(cfg, was *v1.ContainerConfig, image string) {
	cfg.Image = &v1.ImageSpec{Image: image, UserSpecifiedImage: cfg.GetImage().GetUserSpecifiedImage(), RuntimeHandler: cfg.GetImage().GetRuntimeHandler()}
	if len(cfg.GetCommand()) == 0 && len(cfg.GetArgs()) == 0 {
		cfg.Command, cfg.Args = was.GetCommand(), was.GetArgs()
	}
	if cfg.GetWorkingDir() == "" {
		cfg.WorkingDir = was.GetWorkingDir()
	}
	before := was.GetLinux().GetSecurityContext()
	if before == nil {
		return
	}
	if cfg.GetLinux() == nil {
		cfg.Linux = &v1.LinuxContainerConfig{}
	}
	if cfg.GetLinux().GetSecurityContext() == nil {
		cfg.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{}
	}
	sc := cfg.GetLinux().GetSecurityContext()
	if sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
		sc.RunAsUser, sc.RunAsUsername = before.GetRunAsUser(), before.GetRunAsUsername()
	}
	if sc.GetRunAsGroup() == nil {
		sc.RunAsGroup = before.GetRunAsGroup()
	}
}

// open reads the checkpoint of a source.
func (c *Calls) open(ctx context.Context, from *source) (core.Imported, error) {
	if from.path == "" {
		return c.layer(ctx, from.image)
	}
	// A FIFO must not hold the call.
	f, err := os.OpenFile(from.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, invalid.Errorf("%v", err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, invalid.Errorf("%s is no regular file", from.path)
	}
	return c.Verbs.Import(ctx, f)
}

// layer reads the checkpoint in the only layer of an image.
func (c *Calls) layer(ctx context.Context, img core.Image) (core.Imported, error) {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(c.Images.Export(ctx, string(img.ID), w))
	}()
	defer func() {
		_ = r.Close()
		<-done
	}()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil, invalid.Errorf("the image has no layer")
		}
		if err != nil {
			return nil, err
		}
		// The other blobs of an archive with one image are its manifest and its config.
		blob, ok := strings.CutPrefix(h.Name, "blobs/")
		d := digest.Digest(strings.Replace(blob, "/", ":", 1))
		if ok && h.Typeflag == tar.TypeReg && d != img.ID && d != img.Digest {
			return c.Verbs.Import(ctx, tr)
		}
	}
}
