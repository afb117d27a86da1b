package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// imageServer serves the Images service.
type imageServer struct {
	longshorev1.UnimplementedImagesServer
	srv *Server
}

var _ longshorev1.ImagesServer = (*imageServer)(nil)

// owners returns all owners, because the engine lists images for one owner at a time.
func owners() []core.Owner {
	return []core.Owner{core.OwnerCLI, core.OwnerDocker, core.OwnerCRI, core.OwnerSwarm, core.OwnerNomad, core.OwnerMesos, core.OwnerKata, core.OwnerCRIAlpha}
}

// ListImages returns every owner's names, the latest pull first.
func (s *imageServer) ListImages(ctx context.Context, req *longshorev1.ListImagesRequest) (*longshorev1.ListImagesResponse, error) {
	resp := &longshorev1.ListImagesResponse{}
	for _, o := range owners() {
		if req.GetOwner() != "" && req.GetOwner() != string(o) {
			continue
		}
		list, err := s.srv.o.Engine.As(o).Images.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list images of %s: %w", o, err)
		}
		slices.SortFunc(list, func(a, b core.Image) int {
			return cmp.Or(b.Pulled.Compare(a.Pulled), cmp.Compare(a.ID, b.ID))
		})
		for _, img := range list {
			resp.Images = append(resp.Images, view.Image(o, img))
		}
	}
	return resp, nil
}

// InspectImage returns one image as JSON, ours before another owner's.
func (s *imageServer) InspectImage(ctx context.Context, req *longshorev1.InspectImageRequest) (*longshorev1.InspectResponse, error) {
	for _, o := range owners() {
		img, err := s.srv.o.Engine.As(o).Images.Get(ctx, req.GetName())
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// The image's own record has no JSON names; these are the API's.
		out, err := view.JSON(map[string]any{
			"id": img.ID, "owner": o, "digest": img.Digest, "names": img.Names, "digests": img.Digests, "size_bytes": img.Size,
			"artifact": img.Artifact, "files": artifactFiles(img), "annotations": img.Annotations, "unpacked_bytes": img.Unpacked, "layers": img.Layers, "pulled": img.Pulled, "pinned": img.Pinned, "config": img.Config, "health": img.Health, "shell": img.Shell,
		}, nil, req.GetShowEnv() && !access.ReadOnly(ctx))
		if err != nil {
			return nil, err
		}
		return &longshorev1.InspectResponse{Kind: "image", Json: out}, nil
	}
	return nil, fmt.Errorf("find image %q: %w", req.GetName(), errdefs.ErrNotFound)
}

// artifactFiles returns the files of an artifact, nil for an image.
func artifactFiles(img core.Image) (list []map[string]any) {
	for _, f := range img.Files {
		list = append(list, map[string]any{"name": f.Name, "digest": f.Digest, "size_bytes": f.Size, "media_type": f.MediaType})
	}
	return list
}

// PullImage pulls an image for us.
func (s *imageServer) PullImage(req *longshorev1.PullImageRequest, stream grpc.ServerStreamingServer[longshorev1.PullImageResponse]) error {
	var mu sync.Mutex // serializes Send: progress comes from several blobs at once, a stream takes one sender
	opts := pullOptions(req.GetCredentials())
	opts.Platform, opts.Always, opts.Pin = req.GetPlatform(), !req.GetMissing(), req.GetPin()
	opts.Progress = func(p core.PullProgress) {
		mu.Lock()
		defer mu.Unlock()
		// If the client has left, ctx ends.
		_ = stream.Send(&longshorev1.PullImageResponse{Step: &longshorev1.PullImageResponse_Progress{Progress: view.Progress(p)}})
	}
	img, err := s.srv.own.Images.Pull(stream.Context(), req.GetName(), opts)
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	return stream.Send(&longshorev1.PullImageResponse{Step: &longshorev1.PullImageResponse_Image{Image: view.Image(core.OwnerCLI, img)}})
}

// ImportImages imports an archive for us.
func (s *imageServer) ImportImages(stream grpc.ClientStreamingServer[longshorev1.ImportImagesRequest, longshorev1.ImportImagesResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	data := io.MultiReader(bytes.NewReader(first.GetData()), &fromStream[*longshorev1.ImportImagesRequest]{recv: stream.Recv})
	if first.GetProgram() {
		p, err := s.srv.o.Programs.Import(stream.Context(), data)
		if err != nil {
			return err
		}
		return stream.SendAndClose(&longshorev1.ImportImagesResponse{Images: []*longshorev1.Image{{Id: p.Name, Owner: string(core.OwnerCRIAlpha), SizeBytes: p.Size}}})
	}
	images, err := s.srv.o.Transfers.Import(stream.Context(), core.OwnerCLI, data, core.ImportOptions{})
	if err == nil {
		err = s.srv.own.Images.Added(images...)
	}
	if err != nil {
		return err
	}
	resp := &longshorev1.ImportImagesResponse{}
	for _, img := range images {
		resp.Images = append(resp.Images, view.Image(core.OwnerCLI, img))
	}
	return stream.SendAndClose(resp)
}

// ExportImages sends an archive of our images.
func (s *imageServer) ExportImages(req *longshorev1.ExportImagesRequest, stream grpc.ServerStreamingServer[longshorev1.ExportImagesResponse]) error {
	if len(req.GetNames()) == 0 {
		return invalid.Errorf("name at least one image")
	}
	w := toStream(stream.Send, func(data []byte) *longshorev1.ExportImagesResponse {
		return &longshorev1.ExportImagesResponse{Data: data}
	})
	if err := s.srv.o.Transfers.Export(stream.Context(), core.OwnerCLI, req.GetNames(), w); err != nil {
		return err
	}
	return w.Flush()
}

// PushImage stores an image of ours in a registry.
func (s *imageServer) PushImage(req *longshorev1.PushImageRequest, stream grpc.ServerStreamingServer[longshorev1.PushImageResponse]) error {
	opts := pushOptions(req.GetCredentials())
	opts.Target = req.GetTarget()
	opts.Progress = func(p core.PullProgress) { // from one goroutine: blobs are sent one after the other
		_ = stream.Send(&longshorev1.PushImageResponse{Progress: view.Progress(p)}) // if the client has left, ctx ends
	}
	return s.srv.o.Transfers.Push(stream.Context(), core.OwnerCLI, req.GetName(), opts)
}

func pushOptions(c *longshorev1.Credentials) core.PushOptions {
	return core.PushOptions{Host: c.GetHost(), Username: c.GetUsername(), Password: c.GetPassword(), Token: c.GetToken()}
}

// Login checks credentials at a registry.
func (s *imageServer) Login(ctx context.Context, req *longshorev1.LoginRequest) (*longshorev1.LoginResponse, error) {
	return &longshorev1.LoginResponse{}, s.srv.o.Transfers.Login(ctx, req.GetHost(), pushOptions(req.GetCredentials()))
}

// TagImage gives an image of ours another name.
func (s *imageServer) TagImage(ctx context.Context, req *longshorev1.TagImageRequest) (*longshorev1.TagImageResponse, error) {
	return &longshorev1.TagImageResponse{}, s.srv.own.Images.Tag(ctx, req.GetSource(), req.GetTarget())
}

// RemoveImage removes a name of ours. It refuses that for an image of a container of ours, unless
// force is set; the container itself is not affected.
func (s *imageServer) RemoveImage(ctx context.Context, req *longshorev1.RemoveImageRequest) (*longshorev1.RemoveImageResponse, error) {
	img, err := s.srv.own.Images.Get(ctx, req.GetName())
	if errdefs.IsNotFound(err) {
		if _, aerr := s.srv.all.Images.Get(ctx, req.GetName()); aerr == nil || errdefs.IsDataLoss(aerr) {
			return nil, fmt.Errorf("remove image %q: only another owner has it under this name: %w", req.GetName(), errdefs.ErrPermissionDenied)
		}
	}
	if err != nil && !errdefs.IsDataLoss(err) { // Get returns a damaged image too
		return nil, err
	}
	if !req.GetForce() {
		used, err := s.srv.usedImages(ctx)
		if err != nil {
			return nil, err
		}
		if c, ok := used[img.ID]; ok {
			return nil, fmt.Errorf("remove image %q: container %s uses it, use --force: %w", req.GetName(), c.Key, errdefs.ErrFailedPrecondition)
		}
	}
	return &longshorev1.RemoveImageResponse{}, s.srv.own.Images.Remove(ctx, req.GetName())
}

// usedImages maps the ID of each image in use to one of our containers that was made from it or mounts it.
func (s *Server) usedImages(ctx context.Context) (map[digest.Digest]core.Container, error) {
	list, err := s.own.Containers(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	used := map[digest.Digest]core.Container{}
	for _, c := range list {
		if c.Image != "" {
			used[c.Image] = c
		}
		for _, m := range c.Config.Images {
			used[m.Image] = c
		}
	}
	return used, nil
}

// PruneImages removes images that none of our containers uses: those without a name, or all.
func (s *imageServer) PruneImages(ctx context.Context, req *longshorev1.PruneImagesRequest) (*longshorev1.PruneImagesResponse, error) {
	used, err := s.srv.usedImages(ctx)
	if err != nil {
		return nil, err
	}
	freed, err := s.srv.own.Images.Prune(ctx, func(img core.Image) bool {
		_, inUse := used[img.ID]
		return inUse || (!req.GetAll() && len(img.Names) > 0)
	})
	if err != nil {
		return nil, err
	}
	return &longshorev1.PruneImagesResponse{FreedBytes: freed}, nil
}

// ImageUsage returns the size of the image store.
func (s *imageServer) ImageUsage(ctx context.Context, _ *longshorev1.ImageUsageRequest) (*longshorev1.ImageUsageResponse, error) {
	u, err := s.srv.all.Images.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return &longshorev1.ImageUsageResponse{Path: u.Path, Bytes: u.Bytes, Inodes: u.Inodes}, nil
}

// volumeServer serves the Volumes service.
type volumeServer struct {
	longshorev1.UnimplementedVolumesServer
	srv *Server
}

var _ longshorev1.VolumesServer = (*volumeServer)(nil)

// ListVolumes returns every owner's volumes by name.
func (s *volumeServer) ListVolumes(ctx context.Context, req *longshorev1.ListVolumesRequest) (*longshorev1.ListVolumesResponse, error) {
	resp := &longshorev1.ListVolumesResponse{}
	for _, o := range owners() {
		if req.GetOwner() != "" && req.GetOwner() != string(o) {
			continue
		}
		list, err := s.srv.o.Engine.As(o).Volumes.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list volumes of %s: %w", o, err)
		}
		slices.SortFunc(list, func(a, b core.Volume) int { return cmp.Compare(a.Name, b.Name) })
		for _, v := range list {
			resp.Volumes = append(resp.Volumes, view.Volume(v))
		}
	}
	return resp, nil
}

// CreateVolume creates a volume of ours.
func (s *volumeServer) CreateVolume(ctx context.Context, req *longshorev1.CreateVolumeRequest) (*longshorev1.CreateVolumeResponse, error) {
	v, err := s.srv.own.Volumes.Create(ctx, core.VolumeConfig{Name: req.GetName(), Labels: req.GetLabels(), Options: req.GetOptions()})
	if err != nil {
		return nil, err
	}
	return &longshorev1.CreateVolumeResponse{Volume: view.Volume(v)}, nil
}

// RemoveVolume removes a volume of ours that nothing uses.
func (s *volumeServer) RemoveVolume(ctx context.Context, req *longshorev1.RemoveVolumeRequest) (*longshorev1.RemoveVolumeResponse, error) {
	return &longshorev1.RemoveVolumeResponse{}, s.srv.own.Volumes.Remove(ctx, req.GetName())
}

// PruneVolumes removes our anonymous volumes that nothing uses, or with all also those with a name.
func (s *volumeServer) PruneVolumes(ctx context.Context, req *longshorev1.PruneVolumesRequest) (*longshorev1.PruneVolumesResponse, error) {
	list, err := s.srv.own.Volumes.Prune(ctx, func(v core.Volume) bool { return req.GetAll() || v.Anonymous() })
	resp := &longshorev1.PruneVolumesResponse{}
	for _, v := range list {
		resp.Volumes = append(resp.Volumes, view.Volume(v))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prune volumes: it failed after the removal of %d", len(list)), err)
	}
	return resp, nil
}
