package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/treecopy"
)

// CopyOut sends the files at a path of a container.
func (s *containerServer) CopyOut(req *longshorev1.CopyOutRequest, stream grpc.ServerStreamingServer[longshorev1.CopyOutResponse]) error {
	return s.srv.inRoot(stream.Context(), req.GetName(), req.GetForce(), func(root *os.File, ids treecopy.IDs) error {
		src, err := treecopy.Look(root, req.GetPath(), req.GetFollow())
		if err != nil {
			return err
		}
		first := &longshorev1.CopyOutResponse{Source: &longshorev1.CopySource{Name: src.Name, Dir: src.Dir, Contents: src.Contents}}
		if err := stream.Send(first); err != nil {
			return err
		}
		w := bufio.NewWriterSize(writerFunc(func(p []byte) error {
			for chunk := range slices.Chunk(p, exportChunk) {
				if err := stream.Send(&longshorev1.CopyOutResponse{Data: chunk}); err != nil {
					return err
				}
			}
			return nil
		}), exportChunk)
		if err := treecopy.Pack(w, root, req.GetPath(), src.Name, req.GetFollow(), ids); err != nil {
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
		return treecopy.Unpack(&copyReader{recv: stream.Recv}, root, target, owners, ids)
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
		return treecopy.Target{}, invalid.Errorf("a source named %q", src.GetName())
	}
	return treecopy.Place(root, to.GetPath(), treecopy.Source{Name: src.GetName(), Dir: src.GetDir(), Contents: src.GetContents()})
}

// copyReader reads the data of a stream's messages.
type copyReader struct {
	recv func() (*longshorev1.CopyInRequest, error)
	rest []byte
}

func (r *copyReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

var _ io.Reader = (*copyReader)(nil)

// inRoot calls fn with the root of a container as the container sees it, with its mounts.
func (s *Server) inRoot(ctx context.Context, name string, force bool, in func(root *os.File, ids treecopy.IDs) error) error {
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
	ids := treecopy.IDs{UIDs: sb.Config.UIDs, GIDs: sb.Config.GIDs}
	fn := func(root *os.File) error { return asRootOf(ids, func() error { return in(root, ids) }) }
	if c.Main.Pid == 0 || c.State == core.ContainerExited {
		users, err := usersOf(ctx, s.o, ids)
		if err != nil {
			return fmt.Errorf("copy files of %s: %w", c.Key, err)
		}
		defer func() { _ = users.Close() }()
		if err := inEnded(c, users, fn); err != nil {
			return fmt.Errorf("copy files of %s: %w", c.Key, err)
		}
		return nil
	}
	root, err := rootOf(c)
	if err != nil {
		return fmt.Errorf("copy files of %s: %w", c.Key, err)
	}
	defer func() { _ = root.Close() }()
	if err := onThread(func() error { return fn(root) }); err != nil {
		return fmt.Errorf("copy files of %s: %w", c.Key, err)
	}
	return nil
}

// rootOf opens the root of a container's main process. The result belongs to the checked process,
// even if that ends meanwhile and its number is reused.
func rootOf(c core.Container) (*os.File, error) {
	proc, err := os.OpenRoot("/proc/" + strconv.Itoa(c.Main.Pid))
	if err != nil {
		return nil, fmt.Errorf("it has just ended: %w", errdefs.ErrUnavailable)
	}
	defer func() { _ = proc.Close() }()
	in, err := proc.ReadFile("cgroup")
	if err != nil || c.Cgroup.Path != "" && !strings.Contains(string(in), c.Cgroup.Path) {
		return nil, fmt.Errorf("it has just ended: %w", errdefs.ErrUnavailable)
	}
	dir, err := proc.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open its root: %w", err)
	}
	return os.NewFile(uintptr(fd), "/"), nil
}

// inEnded calls fn with the root of a container that has no process, in a mount namespace that
// exists for this call alone: the container's volumes and binds are mounted there as they were.
func inEnded(c core.Container, users *os.File, fn func(root *os.File) error) error {
	return onThread(func() error { return inMounts(c, users, fn) })
}

// inMounts must be called on a thread of its own.
func inMounts(c core.Container, users *os.File, fn func(root *os.File) error) error {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// The main thread does not end with its goroutine: it must not keep the mounts.
	defer func() { _ = unix.Setns(int(own.Fd()), unix.CLONE_NEWNS) }()
	// Unmounts on the node propagate here, but mounts made here do not propagate to the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	root, err := os.Open(filepath.Join(c.Bundle, "rootfs"))
	if err != nil {
		return fmt.Errorf("open its root: %w", err)
	}
	defer func() { _ = root.Close() }()
	spec, err := ocispec.BundleSpec(c.Bundle)
	if err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			continue
		}
		if err := mountIn(root, m, users); err != nil && !errors.Is(err, unix.ENOENT) { // the source of a mount may be gone
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	return fn(root)
}

// mountIn mounts a bind of a spec in a root.
func mountIn(root *os.File, m specs.Mount, users *os.File) error {
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return err
	}
	if base == "" {
		base, rel = path.Split(path.Clean(m.Source))
		if rel == "" {
			rel = "."
		}
	}
	tree, err := beneath.Tree(base, rel, beneath.Copy{Recursive: slices.Contains(m.Options, "rbind")})
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	if slices.Contains(m.Options, "ro") {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return err
		}
	}
	if len(m.UIDMappings) > 0 && users != nil {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("map its owners: %w", err)
		}
	}
	target, err := beneath.In(root, m.Destination, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	return unix.MoveMount(int(tree.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}
