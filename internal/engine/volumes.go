package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// fillVolumes makes the volumes that are missing, fills new ones from the
// image's content, and notes the mounts.
func (b *build) fillVolumes(ctx context.Context) error {
	for _, v := range b.cfg.Volumes {
		vol, err := b.e.o.Volumes.Get(ctx, b.c.Owner, v.Name)
		if errdefs.IsNotFound(err) {
			vol, err = b.e.o.Volumes.Create(ctx, b.c.Owner, v.Name, nil)
			if errdefs.IsAlreadyExists(err) {
				vol, err = b.e.o.Volumes.Get(ctx, b.c.Owner, v.Name)
			}
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if !vol.Filled && !v.NoCopy {
			if err := fill(b.fs, v.Target, vol.Path); err != nil {
				return fmt.Errorf("fill volume %s: %w", v.Name, err)
			}
			if err := b.e.o.Volumes.Filled(ctx, b.c.Owner, v.Name); err != nil {
				return fmt.Errorf("volume %s: %w", v.Name, err)
			}
		}
		mode := "rw"
		if v.ReadOnly {
			mode = "ro"
		}
		b.volumes = append(b.volumes, specs.Mount{Destination: v.Target, Type: "bind", Source: vol.Path, Options: []string{"rbind", "rprivate", mode}})
	}
	return nil
}

// fill copies the directory target of the image into the volume at dir. Neither
// side can be left through a symlink. What is in the volume already stays.
func fill(from *os.Root, target, dir string) error {
	rel := strings.TrimPrefix(path.Clean("/"+target), "/")
	if rel == "" {
		return fmt.Errorf("the root itself: %w", errdefs.ErrInvalidArgument)
	}
	src, err := from.OpenRoot(rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = dst.Close() }()
	return fs.WalkDir(src.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := src.Lstat(p)
		if err != nil {
			return err
		}
		return copyOne(src, dst, p, info)
	})
}

func copyOne(src, dst *os.Root, p string, info fs.FileInfo) error {
	var err error
	switch {
	case info.IsDir():
		if p != "." {
			err = dst.Mkdir(p, 0o700)
		}
	case info.Mode().IsRegular():
		err = copyFile(src, dst, p)
	case info.Mode()&fs.ModeSymlink != 0:
		var to string
		if to, err = src.Readlink(p); err == nil {
			err = dst.Symlink(to, p)
		}
	default:
		return nil // devices, FIFOs and sockets are not content
	}
	if errors.Is(err, fs.ErrExist) && !info.IsDir() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := dst.Lchown(p, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	return dst.Chmod(p, info.Mode().Perm()|info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
}

func copyFile(src, dst *os.Root, p string) error {
	in, err := src.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := dst.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
