package wasm

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant"
)

// ArgdataFile is the name of the argument in the first preopen.
const ArgdataFile = "argdata.json"

// mounted is a directory that a program has as a preopen of its own.
type mounted struct {
	path string
	fs   experimentalsys.FS
}

// openGrants makes of the job's descriptors the first preopen and those of mounts.
func openGrants(j *Job) (*rootFS, []mounted, error) {
	root := &rootFS{files: map[string]opener{ArgdataFile: argdata(j.Argdata)}}
	var mounts []mounted
	for _, d := range j.Descriptors {
		var st unix.Stat_t
		if err := unix.Fstat(d.Number, &st); err != nil {
			return nil, nil, fmt.Errorf("grant %s was not passed: descriptor %d: %w", d.Name, d.Number, err)
		}
		name := strings.TrimPrefix(grant.WasmPath(d), "/")
		switch {
		case d.Grant.Kind == grant.Mount && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			mounts = append(mounts, mounted{grant.WasmPath(d), &dirFS{fd: d.Number, rights: d.Grant.Rights}})
			continue
		case d.Grant.Kind == grant.Listen && d.Grant.Protocol != grant.TCP:
			return nil, nil, fmt.Errorf("grant %s: WASI preview 1 has no sockets of %s: leave it out, or run a native program", d.Name, d.Grant.Protocol)
		case d.Grant.Kind == grant.Listen:
			root.files[name] = listener(d.Number)
		case d.Grant.Kind == grant.Server || d.Grant.Kind == grant.Client:
			s, err := newService(d)
			if err != nil {
				return nil, nil, fmt.Errorf("grant %s: %w", d.Name, err)
			}
			root.files[name] = s
		default:
			root.files[name] = passed{d.Number, rightsOf(d.Grant)}
		}
	}
	return root, mounts, nil
}

// RightsOf says how a file may be used that is no directory.
func rightsOf(g grant.Grant) grant.Rights {
	switch g.Kind {
	case grant.Mount:
		return g.Rights
	case grant.Log:
		return grant.Write
	}
	return grant.Read
}

// opener is an entry of the first preopen.
type opener interface {
	open(flag experimentalsys.Oflag) (experimentalsys.File, experimentalsys.Errno)
	stat() (sys.Stat_t, experimentalsys.Errno)
}

// rootFS is the first preopen. It has only the job's files, and cannot be changed.
type rootFS struct {
	experimentalsys.UnimplementedFS
	files map[string]opener
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// isDir reports whether an entry stands below name.
func (r *rootFS) isDir(name string) bool {
	if name == "" {
		return true
	}
	for f := range r.files {
		if strings.HasPrefix(f, name+"/") {
			return true
		}
	}
	return false
}

// OpenFile implements experimentalsys.FS.
func (r *rootFS) OpenFile(name string, flag experimentalsys.Oflag, _ fs.FileMode) (experimentalsys.File, experimentalsys.Errno) {
	name = clean(name)
	if f, ok := r.files[name]; ok {
		if flag&experimentalsys.O_DIRECTORY != 0 {
			return nil, experimentalsys.ENOTDIR
		}
		return f.open(flag)
	}
	switch {
	case !r.isDir(name) && flag&experimentalsys.O_CREAT != 0:
		return nil, experimentalsys.EROFS
	case !r.isDir(name):
		return nil, experimentalsys.ENOENT
	case flag&(experimentalsys.O_WRONLY|experimentalsys.O_RDWR) != 0:
		return nil, experimentalsys.EISDIR
	}
	return &rootDir{root: r, name: name}, 0
}

// Stat implements experimentalsys.FS.
func (r *rootFS) Stat(name string) (sys.Stat_t, experimentalsys.Errno) {
	name = clean(name)
	if f, ok := r.files[name]; ok {
		return f.stat()
	}
	if r.isDir(name) {
		return sys.Stat_t{Mode: fs.ModeDir | 0o555, Nlink: 2}, 0
	}
	return sys.Stat_t{}, experimentalsys.ENOENT
}

// Lstat implements experimentalsys.FS: there are no links.
func (r *rootFS) Lstat(name string) (sys.Stat_t, experimentalsys.Errno) { return r.Stat(name) }

// rootDir is a directory of the first preopen.
type rootDir struct {
	experimentalsys.UnimplementedFile
	root *rootFS
	name string
	read int
}

// IsDir implements experimentalsys.File.
func (d *rootDir) IsDir() (bool, experimentalsys.Errno) { return true, 0 }

// Stat implements experimentalsys.File.
func (d *rootDir) Stat() (sys.Stat_t, experimentalsys.Errno) { return d.root.Stat(d.name) }

// Seek implements experimentalsys.File.
func (d *rootDir) Seek(offset position, whence int) (int64, experimentalsys.Errno) {
	if offset != 0 || whence != 0 {
		return 0, experimentalsys.EINVAL
	}
	d.read = 0
	return 0, 0
}

// Read implements experimentalsys.File.
func (d *rootDir) Read([]byte) (int, experimentalsys.Errno) { return 0, experimentalsys.EISDIR }

// Write implements experimentalsys.File.
func (d *rootDir) Write([]byte) (int, experimentalsys.Errno) { return 0, experimentalsys.EISDIR }

// Readdir implements experimentalsys.File.
func (d *rootDir) Readdir(n int) ([]experimentalsys.Dirent, experimentalsys.Errno) {
	all := d.root.list(d.name)
	from := min(d.read, len(all))
	to := len(all)
	if n >= 0 {
		to = min(from+n, to)
	}
	d.read = to
	return all[from:to], 0
}

// Close implements experimentalsys.File.
func (d *rootDir) Close() experimentalsys.Errno { return 0 }

func (r *rootFS) list(name string) []experimentalsys.Dirent {
	seen := map[string]experimentalsys.Dirent{}
	for f, o := range r.files {
		if name != "" {
			below, ok := strings.CutPrefix(f, name+"/")
			if !ok {
				continue
			}
			f = below
		}
		first, _, deeper := strings.Cut(f, "/")
		e := experimentalsys.Dirent{Name: first, Type: fs.ModeDir}
		if !deeper {
			st, _ := o.stat()
			e.Type = st.Mode.Type()
		}
		seen[first] = e
	}
	list := make([]experimentalsys.Dirent, 0, len(seen))
	for _, e := range seen {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b experimentalsys.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// argdata is the argument as a file.
type argdata []byte

func (a argdata) open(flag experimentalsys.Oflag) (experimentalsys.File, experimentalsys.Errno) {
	if flag&(experimentalsys.O_WRONLY|experimentalsys.O_RDWR|experimentalsys.O_TRUNC|experimentalsys.O_APPEND) != 0 {
		return nil, experimentalsys.EROFS
	}
	return &bytesFile{data: a}, 0
}

func (a argdata) stat() (sys.Stat_t, experimentalsys.Errno) {
	return sys.Stat_t{Mode: 0o444, Nlink: 1, Size: int64(len(a))}, 0
}

// bytesFile reads bytes.
type bytesFile struct {
	experimentalsys.UnimplementedFile
	data argdata
	at   int64
}

// Stat implements experimentalsys.File.
func (f *bytesFile) Stat() (sys.Stat_t, experimentalsys.Errno) { return f.data.stat() }

// IsDir implements experimentalsys.File.
func (f *bytesFile) IsDir() (bool, experimentalsys.Errno) { return false, 0 }

// Read implements experimentalsys.File.
func (f *bytesFile) Read(p []byte) (int, experimentalsys.Errno) {
	n, errno := f.Pread(p, f.at)
	f.at += int64(n)
	return n, errno
}

// Pread implements experimentalsys.File.
func (f *bytesFile) Pread(p []byte, off int64) (int, experimentalsys.Errno) {
	if off < 0 {
		return 0, experimentalsys.EINVAL
	}
	if off >= int64(len(f.data)) {
		return 0, 0
	}
	return copy(p, f.data[off:]), 0
}

// Seek implements experimentalsys.File.
func (f *bytesFile) Seek(offset position, whence int) (int64, experimentalsys.Errno) {
	switch whence {
	case 1:
		offset += f.at
	case 2:
		offset += int64(len(f.data))
	}
	if offset < 0 || whence < 0 || whence > 2 {
		return 0, experimentalsys.EINVAL
	}
	f.at = offset
	return offset, 0
}

// Write implements experimentalsys.File.
func (f *bytesFile) Write([]byte) (int, experimentalsys.Errno) { return 0, experimentalsys.EBADF }

// Close implements experimentalsys.File.
func (f *bytesFile) Close() experimentalsys.Errno { return 0 }

// passed is a descriptor of the worker that is a file or a pipe.
type passed struct {
	number int
	rights grant.Rights
}

func (p passed) open(flag experimentalsys.Oflag) (experimentalsys.File, experimentalsys.Errno) {
	writes := flag&(experimentalsys.O_WRONLY|experimentalsys.O_RDWR) != 0
	reads := flag&experimentalsys.O_WRONLY == 0
	if writes && p.rights&grant.Write == 0 || reads && !writes && p.rights&grant.Read == 0 {
		return nil, experimentalsys.EACCES
	}
	fd, err := duplicate(p.number)
	if err != nil {
		return nil, errnoOf(err)
	}
	rights := p.rights
	if !writes {
		rights &^= grant.Write
	}
	return &file{fd: fd, rights: rights, nonblock: flag&experimentalsys.O_NONBLOCK != 0}, 0
}

func (p passed) stat() (sys.Stat_t, experimentalsys.Errno) { return statOf(p.number) }

func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func statOf(fd int) (sys.Stat_t, experimentalsys.Errno) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return sys.Stat_t{}, errnoOf(err)
	}
	return statFrom(&st), 0
}

// position is a place in a file. It has a name of its own because go vet expects io.Seeker's signature for a method
// Seek with an int64.
type position = int64
