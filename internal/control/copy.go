package control

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/longshore/longshore/internal/solo"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/inroot"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/treecopy"
)

// CopyOut sends the files at a path of a container.
func (s *containerServer) CopyOut(req *longshorev1.CopyOutRequest, stream grpc.ServerStreamingServer[longshorev1.CopyOutResponse]) error {
	if req.GetWithoutMounts() {
		return s.exportRoot(req, stream)
	}
	return s.srv.inRoot(stream.Context(), req.GetName(), req.GetForce(), func(root *os.File, ids treecopy.IDs) error {
		src, err := treecopy.Look(root, req.GetPath(), req.GetFollow())
		if err != nil {
			return err
		}
		first := &longshorev1.CopyOutResponse{Source: &longshorev1.CopySource{Name: src.Name, Dir: src.Dir, Contents: src.Contents}}
		if err := stream.Send(first); err != nil {
			return err
		}
		w := copyWriter(stream)
		if err := treecopy.Pack(w, root, req.GetPath(), src.Name, req.GetFollow(), ids); err != nil {
			return err
		}
		return w.Flush()
	})
}

// copyWriter returns a writer that sends its input.
func copyWriter(stream grpc.ServerStreamingServer[longshorev1.CopyOutResponse]) *bufio.Writer {
	return toStream(stream.Send, func(data []byte) *longshorev1.CopyOutResponse { return &longshorev1.CopyOutResponse{Data: data} })
}

// exportRoot sends the files of a container's root, without those of the mounts in it.
func (s *containerServer) exportRoot(req *longshorev1.CopyOutRequest, stream grpc.ServerStreamingServer[longshorev1.CopyOutResponse]) error {
	return inContainer(stream.Context(), s.srv, req.GetName(), req.GetForce(), func(in inroot.Container) error {
		if err := stream.Send(&longshorev1.CopyOutResponse{Source: &longshorev1.CopySource{Name: "/", Dir: true, Contents: true}}); err != nil {
			return err
		}
		w := copyWriter(stream)
		err := in.RunAlone(func(root *os.File) error { return treecopy.PackRoot(w, root, solo.EtcFiles(), in.IDs) })
		if err != nil {
			return err
		}
		return w.Flush()
	})
}

// CopyIn unpacks a tar in a container.
func (s *containerServer) CopyIn(stream grpc.ClientStreamingServer[longshorev1.CopyInRequest, longshorev1.CopyInResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	to := first.GetTo()
	if to == nil {
		return invalid.Errorf("the first message has no path to copy to")
	}
	err = s.srv.inRoot(stream.Context(), to.GetName(), to.GetForce(), func(root *os.File, ids treecopy.IDs) error {
		target, err := targetOf(root, to)
		if err != nil {
			return err
		}
		owners := treecopy.Mine // those of the container's root
		if to.GetOwners() {
			owners = treecopy.Theirs
		}
		return treecopy.Unpack(&fromStream[*longshorev1.CopyInRequest]{recv: stream.Recv}, root, target, owners, ids)
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&longshorev1.CopyInResponse{})
}

func targetOf(root *os.File, to *longshorev1.CopyTo) (treecopy.Target, error) {
	src := to.GetSource()
	if src == nil {
		return treecopy.Directory(root, to.GetPath())
	}
	if src.GetName() == "" || strings.ContainsAny(src.GetName(), "/\x00") || src.GetName() == ".." {
		return treecopy.Target{}, invalid.Errorf("the source's name %q cannot be used as a file name", src.GetName())
	}
	return treecopy.Place(root, to.GetPath(), treecopy.Source{Name: src.GetName(), Dir: src.GetDir(), Contents: src.GetContents()})
}

// inRoot calls fn with the root of a container, with the container's mounts.
func (s *Server) inRoot(ctx context.Context, name string, force bool, fn func(root *os.File, ids treecopy.IDs) error) error {
	return inContainer(ctx, s, name, force, func(in inroot.Container) error {
		return in.Run(ctx, func(root *os.File) error { return fn(root, in.IDs) })
	})
}

// inContainer calls fn with a container if the caller may copy its files.
func inContainer(ctx context.Context, s *Server, name string, force bool, fn func(inroot.Container) error) error {
	c, err := s.container(ctx, name)
	if err != nil {
		return err
	}
	if _, err := s.changer(c.Meta, force); err != nil {
		return err
	}
	sb, err := s.all.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	sb = sb.Of(&c.Config)
	ids := treecopy.IDs{UIDs: sb.Config.UIDs, GIDs: sb.Config.GIDs}
	if err := fn(inroot.Container{Container: c, IDs: ids, Namespaces: s.o.Namespaces}); err != nil {
		return fmt.Errorf("copy files of %s: %w", c.Key, err)
	}
	return nil
}
