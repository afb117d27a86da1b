package wasm

import (
	"io/fs"
	"path"
	"strings"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant"
)

// dirFS is a mount: a directory with content that the program owns. The kernel resolves every path beneath the
// descriptor, so that neither "..", nor a link, nor an exchange of a directory for a link leads out.
type dirFS struct {
	experimentalsys.UnimplementedFS
	fd     int
	rights grant.Rights
}

func (d *dirFS) how(flags int, mode uint32) *unix.OpenHow {
	return &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
}

// relative removes leading slashes from a path below the mount. wazero joins the path of an open directory and a path below it by a slash, and
// the former is empty for the preopen itself. wazero has refused absolute paths of programs before.
func relative(name string) string {
	if name = strings.TrimLeft(name, "/"); name == "" {
		return "."
	}
	return name
}

// openat opens a path below the mount.
func (d *dirFS) openat(name string, flags int, mode uint32) (int, experimentalsys.Errno) {
	name = relative(name)
	for try := 0; ; try++ {
		fd, errno := again(func() (int, error) { return unix.Openat2(d.fd, name, d.how(flags, mode)) })
		// The kernel cannot tell where ".." leads while anything is renamed or mounted anywhere.
		if errno != experimentalsys.EAGAIN || try == maxTries {
			return fd, errno
		}
	}
}

// maxTries is how often a path is resolved again. A second time is rare.
const maxTries = 1000

// parent opens the directory that has a name, and returns the name's last part.
func (d *dirFS) parent(name string) (int, string, experimentalsys.Errno) {
	dir, base := path.Split(strings.TrimRight(name, "/"))
	if base == "" || base == "." || base == ".." {
		return -1, "", experimentalsys.EINVAL
	}
	fd, errno := d.openat(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, base, errno
}

// change calls f with the directory and the last part of a path, if the mount is writable. A slash at its end stays, so that the kernel
// refuses files. f must not follow links.
func (d *dirFS) change(name string, f func(dir int, base string) error) experimentalsys.Errno {
	if d.rights&grant.Write == 0 {
		return experimentalsys.EROFS
	}
	dir, base, errno := d.parent(name)
	if errno != 0 {
		return errno
	}
	defer func() { _ = unix.Close(dir) }()
	if strings.HasSuffix(name, "/") {
		base += "/"
	}
	_, errno = again(func() (int, error) { return 0, f(dir, base) })
	return errno
}

// OpenFile implements experimentalsys.FS.
func (d *dirFS) OpenFile(name string, flag experimentalsys.Oflag, perm fs.FileMode) (experimentalsys.File, experimentalsys.Errno) {
	flags, writes := openFlags(flag)
	if writes && d.rights&grant.Write == 0 {
		return nil, experimentalsys.EROFS
	}
	var mode uint32
	if flags&unix.O_CREAT != 0 {
		mode = uint32(perm.Perm())
	}
	fd, errno := d.openat(name, flags, mode)
	if errno != 0 {
		return nil, errno
	}
	f := &file{fd: fd, rights: d.rights, append: flag&experimentalsys.O_APPEND != 0}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		f.rights &^= grant.Write
	}
	if flags&unix.O_ACCMODE == unix.O_WRONLY {
		f.rights &^= grant.Read
	} else if d.rights&grant.Read == 0 {
		if dir, _ := f.IsDir(); !dir {
			_ = f.Close()
			return nil, experimentalsys.EACCES
		}
	}
	return f, 0
}

// openFlags translates the flags of WASI, and says whether they would change something.
func openFlags(flag experimentalsys.Oflag) (flags int, writes bool) {
	switch {
	case flag&experimentalsys.O_RDWR != 0:
		flags = unix.O_RDWR
	case flag&experimentalsys.O_WRONLY != 0:
		flags = unix.O_WRONLY
	}
	for _, f := range []struct {
		theirs experimentalsys.Oflag
		ours   int
	}{
		{experimentalsys.O_APPEND, unix.O_APPEND},
		{experimentalsys.O_CREAT, unix.O_CREAT},
		{experimentalsys.O_DIRECTORY, unix.O_DIRECTORY},
		{experimentalsys.O_DSYNC, unix.O_DSYNC},
		{experimentalsys.O_EXCL, unix.O_EXCL},
		{experimentalsys.O_NOFOLLOW, unix.O_NOFOLLOW},
		{experimentalsys.O_NONBLOCK, unix.O_NONBLOCK},
		{experimentalsys.O_RSYNC, unix.O_RSYNC},
		{experimentalsys.O_SYNC, unix.O_SYNC},
		{experimentalsys.O_TRUNC, unix.O_TRUNC},
	} {
		if flag&f.theirs != 0 {
			flags |= f.ours
		}
	}
	return flags, flags&(unix.O_RDWR|unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC) != 0
}

func (d *dirFS) stat(name string, flags int) (sys.Stat_t, experimentalsys.Errno) {
	fd, errno := d.openat(name, unix.O_PATH|flags, 0)
	if errno != 0 {
		return sys.Stat_t{}, errno
	}
	defer func() { _ = unix.Close(fd) }()
	return statOf(fd)
}

// Stat implements experimentalsys.FS.
func (d *dirFS) Stat(name string) (sys.Stat_t, experimentalsys.Errno) { return d.stat(name, 0) }

// Lstat implements experimentalsys.FS.
func (d *dirFS) Lstat(name string) (sys.Stat_t, experimentalsys.Errno) {
	return d.stat(name, unix.O_NOFOLLOW)
}

// Mkdir implements experimentalsys.FS.
func (d *dirFS) Mkdir(name string, perm fs.FileMode) experimentalsys.Errno {
	return d.change(name, func(dir int, base string) error { return unix.Mkdirat(dir, base, uint32(perm.Perm())) })
}

// Rmdir implements experimentalsys.FS.
func (d *dirFS) Rmdir(name string) experimentalsys.Errno {
	return d.change(name, func(dir int, base string) error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
}

// Unlink implements experimentalsys.FS.
func (d *dirFS) Unlink(name string) experimentalsys.Errno {
	return d.change(name, func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
}

// Rename implements experimentalsys.FS.
func (d *dirFS) Rename(from, to string) experimentalsys.Errno {
	return d.both(from, to, func(fromDir int, fromBase string, toDir int, toBase string) error {
		return unix.Renameat(fromDir, fromBase, toDir, toBase)
	})
}

// Link implements experimentalsys.FS.
func (d *dirFS) Link(from, to string) experimentalsys.Errno {
	return d.both(from, to, func(fromDir int, fromBase string, toDir int, toBase string) error {
		// A link with a slash at its end would be followed, out of the mount too.
		file := strings.TrimRight(fromBase, "/")
		var st unix.Stat_t
		if file != fromBase {
			if err := unix.Fstatat(fromDir, file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return unix.ENOTDIR
			}
		}
		return unix.Linkat(fromDir, file, toDir, toBase, 0)
	})
}

func (d *dirFS) both(from, to string, f func(fromDir int, fromBase string, toDir int, toBase string) error) experimentalsys.Errno {
	var inner experimentalsys.Errno
	errno := d.change(from, func(fromDir int, fromBase string) error {
		inner = d.change(to, func(toDir int, toBase string) error { return f(fromDir, fromBase, toDir, toBase) })
		return nil
	})
	if errno == 0 {
		errno = inner
	}
	return errno
}

// Symlink implements experimentalsys.FS. A link may have any text: it is followed beneath the mount.
func (d *dirFS) Symlink(text, name string) experimentalsys.Errno {
	if strings.HasPrefix(text, "/") {
		return experimentalsys.EPERM // outside of the program, the link would mean another file
	}
	return d.change(name, func(dir int, base string) error { return unix.Symlinkat(text, dir, base) })
}

// Readlink implements experimentalsys.FS.
func (d *dirFS) Readlink(name string) (string, experimentalsys.Errno) {
	dir, base, errno := d.parent(name)
	if errno != 0 {
		return "", errno
	}
	defer func() { _ = unix.Close(dir) }()
	buf := make([]byte, unix.PathMax)
	n, errno := again(func() (int, error) { return unix.Readlinkat(dir, base, buf) })
	return string(buf[:n]), errno
}

// Utimens implements experimentalsys.FS.
func (d *dirFS) Utimens(name string, atim, mtim int64) experimentalsys.Errno {
	if d.rights&grant.Write == 0 {
		return experimentalsys.EROFS
	}
	fd, errno := d.openat(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errno != 0 {
		return errno
	}
	f := &file{fd: fd, rights: d.rights}
	defer func() { _ = f.Close() }()
	return f.Utimens(atim, mtim)
}
