package wasm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"strings"
	"unsafe"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant"
)

// errnoOf turns an error of the kernel into one of WASI. A path that leads out of a mount is EPERM.
func errnoOf(err error) experimentalsys.Errno {
	if errors.Is(err, unix.EXDEV) {
		return experimentalsys.EPERM
	}
	return experimentalsys.UnwrapOSError(err)
}

func statFrom(st *unix.Stat_t) sys.Stat_t {
	return sys.Stat_t{
		Dev: st.Dev, Ino: st.Ino, Mode: modeOf(st.Mode), Nlink: uint64(st.Nlink), Size: st.Size, //nolint:unconvert // arm64 differs
		Atim: st.Atim.Nano(), Mtim: st.Mtim.Nano(), Ctim: st.Ctim.Nano(),
	}
}

func modeOf(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	}
	return mode
}

// again repeats a call that a signal interrupted.
func again(call func() (int, error)) (int, experimentalsys.Errno) {
	for {
		n, err := call()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return max(n, 0), errnoOf(err)
		}
		return n, 0
	}
}

// file is an open file, directory or pipe of the worker.
type file struct {
	experimentalsys.UnimplementedFile
	fd     int
	rights grant.Rights
	append bool
	// nonblock reads of a pipe fail when there is nothing, after a moment.
	nonblock bool
	entries  []experimentalsys.Dirent // that were read and not returned
}

// Dev implements experimentalsys.File.
func (f *file) Dev() (uint64, experimentalsys.Errno) {
	st, errno := f.Stat()
	return st.Dev, errno
}

// Ino implements experimentalsys.File.
func (f *file) Ino() (sys.Inode, experimentalsys.Errno) {
	st, errno := f.Stat()
	return st.Ino, errno
}

// IsDir implements experimentalsys.File.
func (f *file) IsDir() (bool, experimentalsys.Errno) {
	st, errno := f.Stat()
	return st.Mode.IsDir(), errno
}

// IsAppend implements experimentalsys.File.
func (f *file) IsAppend() bool { return f.append }

// SetAppend implements experimentalsys.File.
func (f *file) SetAppend(on bool) experimentalsys.Errno {
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err == nil {
		if flags &^= unix.O_APPEND; on {
			flags |= unix.O_APPEND
		}
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags)
	}
	if err != nil {
		return errnoOf(err)
	}
	f.append = on
	return 0
}

var _ experimentalsys.PollableFile = (*file)(nil)

// IsNonblock implements experimentalsys.PollableFile.
func (f *file) IsNonblock() bool { return f.nonblock }

// SetNonblock implements experimentalsys.PollableFile.
func (f *file) SetNonblock(on bool) experimentalsys.Errno {
	f.nonblock = on
	return 0
}

// Poll implements experimentalsys.Pollable.
func (f *file) Poll(flag experimentalsys.Pflag, milliseconds int32) (bool, experimentalsys.Errno) {
	return poll(f.fd, flag, milliseconds)
}

// Stat implements experimentalsys.File.
func (f *file) Stat() (sys.Stat_t, experimentalsys.Errno) { return statOf(f.fd) }

func (f *file) may(r grant.Rights) experimentalsys.Errno {
	if f.rights&r == 0 {
		return experimentalsys.EBADF
	}
	return 0
}

// Read implements experimentalsys.File.
func (f *file) Read(p []byte) (int, experimentalsys.Errno) {
	if errno := f.may(grant.Read); errno != 0 {
		return 0, errno
	}
	if f.nonblock {
		if ready, errno := f.Poll(experimentalsys.POLLIN, nonblockWait); errno != 0 || !ready {
			if errno == 0 {
				errno = experimentalsys.EAGAIN
			}
			return 0, errno
		}
	}
	n, errno := again(func() (int, error) { return unix.Read(f.fd, p) })
	for errno == experimentalsys.EAGAIN { // the other end made it non-blocking
		if errno = wait(f.fd, unix.POLLIN, -1); errno == 0 {
			n, errno = again(func() (int, error) { return unix.Read(f.fd, p) })
		}
	}
	return n, errno
}

// Pread implements experimentalsys.File.
func (f *file) Pread(p []byte, off int64) (int, experimentalsys.Errno) {
	if errno := f.may(grant.Read); errno != 0 {
		return 0, errno
	}
	return again(func() (int, error) { return unix.Pread(f.fd, p, off) })
}

// Write implements experimentalsys.File.
func (f *file) Write(p []byte) (int, experimentalsys.Errno) {
	if errno := f.may(grant.Write); errno != 0 {
		return 0, errno
	}
	n, errno := again(func() (int, error) { return unix.Write(f.fd, p) })
	for errno == experimentalsys.EAGAIN {
		if errno = wait(f.fd, unix.POLLOUT, -1); errno == 0 {
			n, errno = again(func() (int, error) { return unix.Write(f.fd, p) })
		}
	}
	return n, errno
}

// Pwrite implements experimentalsys.File.
func (f *file) Pwrite(p []byte, off int64) (int, experimentalsys.Errno) {
	if errno := f.may(grant.Write); errno != 0 {
		return 0, errno
	}
	return again(func() (int, error) { return unix.Pwrite(f.fd, p, off) })
}

// Seek implements experimentalsys.File.
func (f *file) Seek(offset position, whence int) (int64, experimentalsys.Errno) {
	n, err := unix.Seek(f.fd, offset, whence)
	if err != nil {
		return 0, errnoOf(err)
	}
	f.entries = nil
	return n, 0
}

// Truncate implements experimentalsys.File.
func (f *file) Truncate(size int64) experimentalsys.Errno {
	if errno := f.may(grant.Write); errno != 0 {
		return errno
	}
	_, errno := again(func() (int, error) { return 0, unix.Ftruncate(f.fd, size) })
	return errno
}

// Sync implements experimentalsys.File.
func (f *file) Sync() experimentalsys.Errno {
	_, errno := again(func() (int, error) { return 0, unix.Fsync(f.fd) })
	return errno
}

// Datasync implements experimentalsys.File.
func (f *file) Datasync() experimentalsys.Errno {
	_, errno := again(func() (int, error) { return 0, unix.Fdatasync(f.fd) })
	return errno
}

// Utimens implements experimentalsys.File.
func (f *file) Utimens(atim, mtim int64) experimentalsys.Errno {
	if errno := f.may(grant.Write); errno != 0 {
		return errno
	}
	times := [2]unix.Timespec{timeOf(atim), timeOf(mtim)}
	// With no path the call is about the descriptor itself; the package unix has no function for that.
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(f.fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errnoOf(errno)
	}
	return 0
}

func timeOf(ns int64) unix.Timespec {
	if ns == math.MinInt64 { // experimentalsys.UTIME_OMIT
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return unix.NsecToTimespec(ns)
}

// Close implements experimentalsys.File.
func (f *file) Close() experimentalsys.Errno {
	if err := unix.Close(f.fd); err != nil {
		return errnoOf(err)
	}
	return 0
}

// Readdir implements experimentalsys.File.
func (f *file) Readdir(n int) ([]experimentalsys.Dirent, experimentalsys.Errno) {
	if errno := f.may(grant.Read); errno != 0 {
		return nil, experimentalsys.EACCES
	}
	var out []experimentalsys.Dirent
	for n < 0 || len(out) < n {
		if len(f.entries) == 0 {
			buf := make([]byte, 16<<10)
			got, err := again(func() (int, error) { return unix.Getdents(f.fd, buf) })
			if err != 0 {
				return out, err
			}
			if got == 0 {
				return out, 0
			}
			f.entries = parseEntries(buf[:got])
			continue
		}
		take := len(f.entries)
		if n >= 0 {
			take = min(take, n-len(out))
		}
		out = append(out, f.entries[:take]...)
		f.entries = f.entries[take:]
	}
	return out, 0
}

// parseEntries reads struct linux_dirent64: inode, offset, length of the record, type, name.
func parseEntries(buf []byte) []experimentalsys.Dirent {
	const head = 19
	var list []experimentalsys.Dirent
	for len(buf) >= head {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size < head || size > len(buf) {
			break
		}
		name, _, _ := strings.Cut(string(buf[head:size]), "\x00")
		if name != "." && name != ".." {
			list = append(list, experimentalsys.Dirent{Name: name, Ino: binary.NativeEndian.Uint64(buf), Type: modeOf(uint32(buf[18]) << 12).Type()})
		}
		buf = buf[size:]
	}
	return list
}

// wait waits until fd is ready, for at most so many milliseconds, -1 for ever.
func wait(fd int, events int16, milliseconds int) experimentalsys.Errno {
	_, errno := again(func() (int, error) {
		return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, milliseconds)
	})
	return errno
}
