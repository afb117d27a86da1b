package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
)

// maxRead limits how much one ReadFile returns, in bytes: sixteen pages, as in Mesos.
const maxRead = 16 * 4096

// ErrDirectory is returned by ReadFile for a directory.
var ErrDirectory = errors.New("Cannot read a directory.\n") //nolint:gochecknoglobals,staticcheck,revive // Mesos' text

// openPath opens the sandbox that a path begins with; rel is the rest of the path.
// NotFound.
func (t Tree) openPath(virtual string) (root *os.Root, rel string, err error) {
	rest, ok := strings.CutPrefix(path.Clean(virtual), t.Dir()+"/")
	if !ok || !path.IsAbs(virtual) || strings.ContainsRune(virtual, 0) {
		return nil, "", fmt.Errorf("%s: %w", virtual, errdefs.ErrNotFound)
	}
	name, rel, _ := strings.Cut(rest, "/")
	if rel == "" {
		rel = "."
	}
	root, err = beneath.Root(t.Dir(), name)
	return root, rel, pathError(virtual, err)
}

// pathError classifies an error of the file system: NotFound for missing files, InvalidArgument for
// everything else.
func pathError(virtual string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w", virtual, errdefs.ErrNotFound)
	default:
		return inaccessible(virtual)
	}
}

// inaccessible is Mesos' error for a path that leads out of the sandbox or to a special
// file.
func inaccessible(virtual string) error { return invalid.Plainf("'%s' is inaccessible.", virtual) }

// ListFiles lists the directory at an absolute path of the host, sorted by name. For a
// file the list is empty. NotFound, InvalidArgument.
func (t Tree) ListFiles(virtual string) ([]*mesosv1.FileInfo, error) {
	root, rel, err := t.openPath(virtual)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	// O_NONBLOCK, so as not to wait for the other end of a FIFO.
	dir, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, pathError(virtual, err)
	}
	defer func() { _ = dir.Close() }()
	if st, err := dir.Stat(); err != nil || !st.IsDir() {
		return nil, pathError(virtual, err)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", virtual, err)
	}
	slices.Sort(names)
	var list []*mesosv1.FileInfo
	for _, n := range names {
		st, err := root.Stat(path.Join(rel, n))
		if err != nil { // a broken link, or one that leads out of the sandbox
			if st, err = root.Lstat(path.Join(rel, n)); err != nil {
				continue // deleted meanwhile
			}
		}
		list = append(list, fileInfo(path.Join(path.Clean(virtual), n), st))
	}
	return list, nil
}

func fileInfo(virtual string, st fs.FileInfo) *mesosv1.FileInfo {
	size, seconds := uint64(st.Size()), st.ModTime().Unix()*1e9
	i := &mesosv1.FileInfo{Path: &virtual, Size: &size, Mtime: &mesosv1.TimeInfo{Nanoseconds: &seconds}}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		links, mode, uid, gid := int32(s.Nlink), s.Mode, userName(s.Uid), groupName(s.Gid)
		i.Nlink, i.Mode, i.Uid, i.Gid = &links, &mode, &uid, &gid
	}
	return i
}

// userName is the host's name of a user, or its number.
func userName(id uint32) string {
	n := strconv.FormatUint(uint64(id), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return n
}

func groupName(id uint32) string {
	n := strconv.FormatUint(uint64(id), 10)
	if g, err := user.LookupGroupId(n); err == nil {
		return g.Name
	}
	return n
}

// ReadFile reads up to length bytes (nil: as many as fit in one answer) at offset of
// the file at an absolute path of the host. It returns the size of the whole file too.
// NotFound, InvalidArgument, ErrDirectory.
func (t Tree) ReadFile(virtual string, offset uint64, length *uint64) (size uint64, data []byte, err error) {
	root, rel, err := t.openPath(virtual)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = root.Close() }()
	file, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, nil, pathError(virtual, err)
	}
	defer func() { _ = file.Close() }()
	st, err := file.Stat()
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("read %s: %w", virtual, err)
	case st.IsDir():
		return 0, nil, ErrDirectory
	case !st.Mode().IsRegular():
		return 0, nil, inaccessible(virtual)
	}
	size = uint64(st.Size())
	n := uint64(maxRead)
	if length != nil {
		n = min(n, *length)
	}
	if offset >= size {
		return size, []byte{}, nil
	}
	data = make([]byte, min(n, size-offset))
	got, err := file.ReadAt(data, int64(offset))
	if err != nil && !errors.Is(err, io.EOF) { // it may have been truncated meanwhile
		return 0, nil, fmt.Errorf("read %s: %w", virtual, err)
	}
	return size, data[:got], nil
}
