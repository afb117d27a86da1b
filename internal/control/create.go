package control

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/grpcerr"
)

// Create creates a sandbox with one container in it.
func (s *containerServer) Create(req *longshorev1.CreateRequest, stream grpc.ServerStreamingServer[longshorev1.CreateResponse]) error {
	ctx := stream.Context()
	made, err := s.srv.solo.Prepare(ctx, req)
	if err != nil {
		return err
	}
	img, err := s.srv.imageFor(ctx, req, stream.Send)
	if err != nil {
		return err
	}
	for _, m := range req.GetImages() {
		mounted, err := s.srv.imageFor(ctx, mountRequest(req, m), stream.Send)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.GetTarget(), err)
		}
		made.Images = append(made.Images, mounted)
	}
	c, err := made.Create(ctx, img)
	if err == nil && req.GetStart() {
		err = s.srv.solo.StartCreated(ctx, c)
	}
	if err != nil {
		return startFailure(err)
	}
	return stream.Send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Created{Created: &longshorev1.Created{
		Id: string(c.ID), Sandbox: string(c.Sandbox), Name: string(c.Key), Warnings: c.Warnings,
	}}})
}

// mountRequest returns the request for an image that a container mounts.
func mountRequest(req *longshorev1.CreateRequest, m *longshorev1.ImageMount) *longshorev1.CreateRequest {
	return &longshorev1.CreateRequest{Image: m.GetImage(), Pull: req.GetPull(), Credentials: req.GetCredentials()}
}

// imageFor finds the image, and pulls it when necessary.
func (s *Server) imageFor(ctx context.Context, req *longshorev1.CreateRequest, send func(*longshorev1.CreateResponse) error) (core.Image, error) {
	if req.GetPull() != "always" {
		img, err := s.own.Images.Get(ctx, req.GetImage())
		fits := err == nil && isFor(img, req.GetPlatform())
		switch {
		case fits, err != nil && !errdefs.IsNotFound(err), err != nil && req.GetPull() == "never":
			return img, err
		case req.GetPull() == "never":
			return core.Image{}, fmt.Errorf("image %s for %s: %w", req.GetImage(), req.GetPlatform(), errdefs.ErrNotFound)
		}
	}
	var mu sync.Mutex // serializes Send: progress comes from several blobs at once, a stream takes one sender
	opts := pullOptions(req.GetCredentials())
	opts.Always, opts.Platform = req.GetPull() == "always", req.GetPlatform()
	opts.Progress = func(p core.PullProgress) {
		mu.Lock()
		defer mu.Unlock()
		// If the client has left, ctx ends.
		_ = send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Pull{Pull: view.Progress(p)}})
	}
	img, err := s.own.Images.Pull(ctx, req.GetImage(), opts)
	mu.Lock()
	defer mu.Unlock()
	return img, err
}

// isFor reports whether an image is for a platform, in the form of the command line. Every image is for the platform
// "".
func isFor(img core.Image, platform string) bool {
	if platform == "" {
		return true
	}
	want, err := platforms.Parse(platform)
	return err == nil && platforms.OnlyStrict(want).Match(img.Config.Platform)
}

func pullOptions(c *longshorev1.Credentials) core.PullOptions {
	return core.PullOptions{Host: c.GetHost(), Username: c.GetUsername(), Password: c.GetPassword(), Token: c.GetToken()}
}

// startFailure adds to an error the exit status that a shell would show for a program that could
// not be started.
func startFailure(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(grpcerr.Status(err, nil))
	if !ok || st.Code() == codes.Canceled {
		return grpcerr.Status(err, nil)
	}
	with, derr := st.WithDetails(&longshorev1.StartFailure{ExitStatus: int32(core.StartStatus(err))})
	if derr != nil {
		return st.Err()
	}
	return with.Err()
}
