package compile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// Limits for a plan's copies into a tmpfs (the mount option tmpcopyup). More is refused, because a
// plan is held in memory.
const (
	maxCopyEntries = 300
	maxCopyBytes   = 512 << 10
)

// entry is one file below a directory of the root filesystem.
type entry struct {
	name     string // relative path
	mode     uint32 // with the file type
	uid, gid uint32
	dev      uint64
	text     string // target of a symlink or content of a file
}

// copyUp reads the content of directory p of the root filesystem. It returns nothing if
// p does not exist, or if a mount covers it.
func (r *rootfs) copyUp(p string) ([]entry, error) {
	if _, ok := modeOf(r.in.Root, p, r.mounts); !ok {
		return nil, nil
	}
	dir, err := unix.Open(r.in.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.in.Root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := inRoot(dir, p)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	from, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	var all []entry
	size := 0
	err = fs.WalkDir(from.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		e, err := entryOf(from, name)
		if err != nil {
			return err
		}
		all, size = append(all, e), size+len(e.text)
		if len(all) > maxCopyEntries || size > maxCopyBytes {
			return fmt.Errorf("tmpcopyup: more than %d files or %d bytes: %w", maxCopyEntries, maxCopyBytes, errdefs.ErrNotImplemented)
		}
		return nil
	})
	return all, err
}

func entryOf(from *os.Root, name string) (entry, error) {
	info, err := from.Lstat(name)
	if err != nil {
		return entry{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entry{}, errors.New("no stat")
	}
	e := entry{name: name, mode: st.Mode, uid: st.Uid, gid: st.Gid, dev: st.Rdev}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		e.text, err = from.Readlink(name)
	case unix.S_IFREG:
		var f *os.File
		if f, err = from.Open(name); err != nil {
			return e, err
		}
		defer func() { _ = f.Close() }()
		var b []byte
		b, err = io.ReadAll(io.LimitReader(f, maxCopyBytes+1))
		e.text = string(b)
	}
	return e, err
}

// copyInto makes the entries in the tmpfs that has just been mounted at p.
func (r *rootfs) copyInto(p string, all []entry) {
	if len(all) == 0 {
		return
	}
	r.plan.Add("umask 0", unix.SYS_UMASK, plan.V(0))
	for _, e := range all {
		dir, _ := r.target(path.Join(p, path.Dir(e.name)))
		name, title := plan.P(r.plan.String(path.Base(e.name))), path.Join(p, e.name)
		switch e.mode & unix.S_IFMT {
		case unix.S_IFDIR:
			r.plan.Add("copy "+title, unix.SYS_MKDIRAT, plan.V(dir), name, plan.V(e.mode&0o7777))
		case unix.S_IFLNK:
			r.plan.Add("copy "+title, unix.SYS_SYMLINKAT, plan.P(r.plan.String(e.text)), plan.V(dir), name)
		case unix.S_IFSOCK: // its listener is not bound to the copy
			r.closeLast(dir)
			continue
		default:
			r.plan.Add("copy "+title, unix.SYS_MKNODAT, plan.V(dir), name, plan.V(e.mode), plan.V(e.dev))
		}
		if e.mode&unix.S_IFMT == unix.S_IFREG && e.text != "" {
			how := r.plan.Words(uint64(unix.O_WRONLY|unix.O_CLOEXEC), 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
			fd, _ := r.open("open "+title, unix.SYS_OPENAT2, plan.V(dir), name, plan.P(how), plan.V(unix.SizeofOpenHow))
			r.plan.Add("fill "+title, unix.SYS_WRITE, plan.V(fd), plan.P(r.plan.Bytes([]byte(e.text))), plan.V(len(e.text))).Result(uint64(len(e.text)))
			r.closeLast(fd)
		}
		uid, gid := r.mappedID(e.uid, r.in.Spec.Linux.UIDMappings), r.mappedID(e.gid, r.in.Spec.Linux.GIDMappings)
		if uid|gid != 0 {
			r.plan.Add("owner of "+title, unix.SYS_FCHOWNAT, plan.V(dir), name, plan.V(uid), plan.V(gid), plan.V(unix.AT_SYMLINK_NOFOLLOW))
		}
		r.closeLast(dir)
	}
	r.plan.Add("umask", unix.SYS_UMASK, plan.V(0o022))
}

// mappedID returns the ID that an ID of the host has in the container's user namespace, or
// root's if it is not mapped.
func (r *rootfs) mappedID(id uint32, mappings []specs.LinuxIDMapping) uint32 {
	if !r.has(specs.UserNamespace) {
		return id
	}
	for _, m := range mappings {
		if id >= m.HostID && id-m.HostID < m.Size {
			return m.ContainerID + id - m.HostID
		}
	}
	return 0
}

// without removes an option, and reports whether the list had it.
func without(data []string, option string) (rest []string, had bool) {
	for _, d := range data {
		if d == option {
			had = true
			continue
		}
		rest = append(rest, d)
	}
	return rest, had
}
