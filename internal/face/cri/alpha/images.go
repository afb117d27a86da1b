package alpha

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/programs"
)

func programImage(p programs.Program) *cri.Image {
	return &cri.Image{Id: p.Name, Size: uint64(max(p.Size, 0))}
}

// ListImages lists programs, too.
func (s *Server) ListImages(ctx context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	out, ref := &cri.ListImagesResponse{}, req.GetFilter().GetImage().GetImage()
	if ref != "" {
		r, err := s.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if r.GetImage() != nil {
			out.Images = append(out.Images, r.GetImage())
		}
		return out, err
	}
	r, err := s.o.Images.ListImages(ctx, &v1.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	out = as[*cri.ListImagesResponse](r)
	all, err := s.o.Programs.List()
	for _, p := range all {
		out.Images = append(out.Images, programImage(p))
	}
	return out, err
}

// ImageStatus implements the service. An image that is not there is no error.
func (s *Server) ImageStatus(ctx context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	ref := req.GetImage().GetImage()
	if p, err := s.o.Programs.Get(ref); err == nil {
		return &cri.ImageStatusResponse{Image: programImage(p)}, nil
	}
	r, err := s.o.Images.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
	return as[*cri.ImageStatusResponse](r), err
}

// PullImage pulls an image as v1 does. Programs are imported.
func (s *Server) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if programs.IsName(ref) {
		return nil, invalid.Errorf("Images can only be pulled by URL, not by checksum: import the program of %s with longshore import --program", ref)
	}
	to := as[*v1.PullImageRequest](req)
	to.SandboxConfig = nil
	r, err := s.o.Images.PullImage(ctx, to)
	return as[*cri.PullImageResponse](r), err
}

// RemoveImage implements the service. An image that is not there is no error.
func (s *Server) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	ref := req.GetImage().GetImage()
	if s.o.Programs.Has(ref) {
		return &cri.RemoveImageResponse{}, gone(s.o.Programs.Remove(ref))
	}
	_, err := s.o.Images.RemoveImage(ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: ref}})
	return &cri.RemoveImageResponse{}, err
}

// ImageFsInfo implements the service.
func (s *Server) ImageFsInfo(ctx context.Context, _ *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	r, err := s.o.Images.ImageFsInfo(ctx, &v1.ImageFsInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("image filesystem: %w", err)
	}
	out := &cri.ImageFsInfoResponse{}
	for _, u := range r.GetImageFilesystems() {
		to := as[*cri.FilesystemUsage](u)
		to.StorageId = storage(u.GetFsId().GetMountpoint())
		out.ImageFilesystems = append(out.ImageFilesystems, to)
	}
	return out, nil
}

// byUUID has a link for each filesystem of a device.
const byUUID = "/dev/disk/by-uuid"

// storage returns the UUID of the filesystem at a path, its id in this API; nil for one without a
// device of its own.
func storage(at string) *cri.StorageIdentifier {
	var st unix.Stat_t
	if at == "" || unix.Stat(at, &st) != nil {
		return nil
	}
	entries, err := os.ReadDir(byUUID)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		var disk unix.Stat_t
		if unix.Stat(filepath.Join(byUUID, e.Name()), &disk) == nil && disk.Mode&unix.S_IFMT == unix.S_IFBLK && disk.Rdev == st.Dev {
			return &cri.StorageIdentifier{Uuid: e.Name()}
		}
	}
	return nil
}
