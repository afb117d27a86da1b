package rootfs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// unreachable are the errors of a server that may answer the next time.
var unreachable = []unix.Errno{unix.ETIMEDOUT, unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.EHOSTDOWN, unix.ENETUNREACH, unix.EAGAIN} //nolint:gochecknoglobals // never changed

// mountFilesystem mounts a filesystem on target. It uses fsopen(2) and its kin: after an error
// their context has the kernel's reason, where mount(2) has a number only, and the filesystem is
// attached only when it is complete. A server may take minutes until a timeout; mountFilesystem
// returns when ctx ends, and drops a later result.
func mountFilesystem(ctx context.Context, m core.Mount, target string, opts ocispec.MountOptions) error {
	fd, err := unix.Fsopen(m.Type, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	fs := fsContext(fd)
	if err := fs.configure(m.Source, opts); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	created := make(chan struct{})
	go func() {
		err = fs.explain(unix.FsconfigCreate(fd))
		close(created)
	}()
	select {
	case <-created:
	case <-ctx.Done():
		go func() {
			<-created
			_ = unix.Close(fd)
		}()
		return context.Cause(ctx)
	}
	defer func() { _ = unix.Close(fd) }()
	if err != nil {
		return err
	}
	return attach(fd, target, opts.Flags)
}

// attach mounts the filesystem of a context on target.
func attach(fd int, target string, flags uintptr) error {
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, attrs(flags))
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer func() { _ = unix.Close(mnt) }()
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

// fsContext is the descriptor of fsopen(2).
type fsContext int

// configure sets the source and the options. Its errors contain no values of options: one
// may be a password.
func (c fsContext) configure(source string, opts ocispec.MountOptions) error {
	if err := unix.FsconfigSetString(int(c), "source", source); err != nil {
		return fmt.Errorf("source: %w", c.explain(err))
	}
	for _, f := range []struct {
		ms   uintptr
		name string
	}{
		{unix.MS_RDONLY, "ro"}, {unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}, {unix.MS_MANDLOCK, "mand"},
	} {
		if opts.Flags&f.ms == 0 {
			continue
		}
		if err := unix.FsconfigSetFlag(int(c), f.name); err != nil {
			return fmt.Errorf("option %s: %w", f.name, c.explain(err))
		}
	}
	for _, o := range opts.Data {
		key, value, has := strings.Cut(o, "=")
		var err error
		if has {
			err = unix.FsconfigSetString(int(c), key, value)
		} else {
			err = unix.FsconfigSetFlag(int(c), key)
		}
		if err != nil {
			return fmt.Errorf("option %s: %w", key, c.explain(err))
		}
	}
	return nil
}

// The most that explain passes on.
const (
	maxReasons = 8
	maxReason  = 512 // bytes
)

// explain adds the kernel's reasons to an error.
func (c fsContext) explain(err error) error {
	if err == nil {
		return nil
	}
	var reasons []string
	buf := make([]byte, 4096)
	for len(reasons) < maxReasons {
		n, rerr := unix.Read(int(c), buf)
		if rerr != nil || n <= 0 {
			break // there are no more
		}
		// A line is "e REASON" or "w REASON"; those with an i are of no interest.
		kind, text, _ := strings.Cut(strings.ToValidUTF8(string(buf[:min(n, maxReason)]), "?"), " ")
		if kind == "e" || kind == "w" {
			reasons = append(reasons, strings.TrimSpace(text))
		}
	}
	if len(reasons) == 0 {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(reasons, "; "), err)
}
