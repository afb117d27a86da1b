package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/cri/inspect"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/invalid"
)

func (s *server) ListImages(ctx context.Context, req *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	list, err := s.images(ctx, req.GetFilter())
	return &v1.ListImagesResponse{Images: list}, err
}

func (s *server) StreamImages(req *v1.StreamImagesRequest, out v1.ImageService_StreamImagesServer) error {
	list, err := s.images(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return listcache.InChunks(list, listcache.Size, func(chunk []*v1.Image) error { return out.Send(&v1.StreamImagesResponse{Images: chunk}) })
}

func (s *server) images(ctx context.Context, f *v1.ImageFilter) ([]*v1.Image, error) {
	if ref := f.GetImage().GetImage(); ref != "" {
		i, err := s.engine.Images.Get(ctx, ref)
		if err != nil {
			return nil, gone(err)
		}
		return []*v1.Image{image(s.cfg, i)}, nil
	}
	all, err := s.engine.Images.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	out := make([]*v1.Image, 0, len(all))
	for _, i := range all {
		out = append(out, image(s.cfg, i))
	}
	return out, nil
}

func (s *server) ImageStatus(ctx context.Context, req *v1.ImageStatusRequest) (*v1.ImageStatusResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid.Errorf("image status: no image")
	}
	i, err := s.engine.Images.Get(ctx, ref)
	if errdefs.IsNotFound(err) {
		return &v1.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image status: %w", err)
	}
	resp := &v1.ImageStatusResponse{Image: image(s.cfg, i)}
	if req.GetVerbose() {
		resp.Info = inspect.Image(&i)
	}
	return resp, nil
}

// PullImage asks the registry always: kubelet calls it when it wants that.
func (s *server) PullImage(ctx context.Context, req *v1.PullImageRequest) (*v1.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid.Errorf("pull image: no image")
	}
	opts, err := convert.PullOptions(ref, req.GetAuth())
	if err == nil {
		err = knownHandler(ctx, s, req.GetImage().GetRuntimeHandler())
	}
	if err != nil {
		return nil, fmt.Errorf("pull image %s: %w", ref, err)
	}
	i, err := s.engine.Images.Pull(ctx, ref, opts)
	if errors.Is(err, core.ErrImageRefused) {
		return nil, signatureInvalid(err)
	}
	if err != nil {
		return nil, fmt.Errorf("pull image %s: %w", ref, err)
	}
	return &v1.PullImageResponse{ImageRef: string(i.ID)}, nil
}

// signatureInvalid returns a refusal in kubelet's form: kubelet reads the beginning of the text,
// and sees the text alone only if the code is Unknown.
func signatureInvalid(err error) error {
	return status.Errorf(codes.Unknown, "%s: %v", v1.SignatureValidationFailed, err)
}

// RemoveImage removes all names of an image, as the API says.
func (s *server) RemoveImage(ctx context.Context, req *v1.RemoveImageRequest) (*v1.RemoveImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid.Errorf("remove image: no image")
	}
	i, err := s.engine.Images.Get(ctx, ref)
	if err == nil || errdefs.IsDataLoss(err) { // Get returns a damaged image too
		err = s.engine.Images.Remove(ctx, string(i.ID))
	}
	if gone(err) != nil {
		return nil, fmt.Errorf("remove image %s: %w", ref, err)
	}
	return &v1.RemoveImageResponse{}, nil
}

// ImageFsInfo names one filesystem twice: containers' layers stand where images
// do.
func (s *server) ImageFsInfo(ctx context.Context, _ *v1.ImageFsInfoRequest) (*v1.ImageFsInfoResponse, error) {
	u, err := s.engine.Images.Usage(ctx)
	if err != nil {
		return nil, fmt.Errorf("image filesystem: %w", err)
	}
	fs := &v1.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &v1.FilesystemIdentifier{Mountpoint: u.Path}, UsedBytes: known(u.Bytes), InodesUsed: known(u.Inodes),
	}
	return &v1.ImageFsInfoResponse{ImageFilesystems: []*v1.FilesystemUsage{fs}, ContainerFilesystems: []*v1.FilesystemUsage{fs}}, nil
}

// knownHandler refuses a RuntimeClass handler that no sandbox could have either.
// Images are the same for all handlers.
func knownHandler(ctx context.Context, s *server, name string) error {
	runtimes, err := s.engine.Runtimes(ctx)
	if err == nil && !slices.ContainsFunc(handlers(s.cfg, runtimes), func(h *v1.RuntimeHandler) bool { return h.GetName() == name }) {
		err = invalid.Errorf("runtime handler %q is unknown", name)
	}
	return err
}

// image is one image as the API tells of it. A numeric user in the image's
// config is a uid, anything else a name that only the image itself can resolve.
func image(cfg Config, i core.Image) *v1.Image {
	out := &v1.Image{Id: string(i.ID), RepoTags: i.Names, RepoDigests: i.Digests, Size: uint64(max(i.Size, 0))}
	out.Pinned = i.Pinned || convert.Named(cfg.PinnedImages, i.Names)
	if user, _, _ := strings.Cut(i.Config.Config.User, ":"); user != "" {
		if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
			out.Uid = &v1.Int64Value{Value: uid}
		} else {
			out.Username = user
		}
	}
	return out
}
