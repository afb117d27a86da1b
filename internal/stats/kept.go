package stats

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Kept reads cgroups and keeps the often read files of each open. Opening a file of a
// cgroup costs ten times as much as reading its number, because the kernel walks every
// directory of the path.
//
// An open file never has old values: the kernel makes the text for each read, and
// reads fail after the cgroup was removed. Its methods may be called by
// any goroutine; those of a nil *Kept open everything each time.
type Kept struct {
	most    int64
	readers sync.Pool

	mu    sync.Mutex // guards dirs, timer; and used of every dir
	dirs  map[string]*dir
	timer *time.Timer // runs while there are dirs

	open     atomic.Int64 // files that are kept
	openDirs atomic.Int64 // directories that are kept open
	// sizes caches the sizes of huge pages. nil: not read yet.
	sizes atomic.Pointer[[]string]
}

// dir is one directory of a cgroup.
type dir struct {
	used bool // since the last sweep; Kept.mu guards it

	mu    sync.Mutex // guards swept, files, below
	swept bool       // nothing may be kept here any more
	files []file     // few enough for a linear search
	// below are the directories in it when it was listed last.
	below []string
}

// file is one that is kept; "" is the directory itself.
type file struct {
	name string
	fd   int
}

const (
	// keepFor is how long nobody may ask for a cgroup before its files are closed;
	// up to twice that may pass. Kubelet asks every ten seconds.
	keepFor = time.Minute
	// mostKept bounds the kernel's memory: each open file holds a page of it.
	mostKept = 8 << 10
)

// NewKept keeps at most a quarter of the descriptors that this process may have.
func NewKept() *Kept {
	k := &Kept{most: mostKept, dirs: map[string]*dir{}, readers: sync.Pool{New: func() any { return newReader(usual) }}}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		k.most = int64(min(mostKept, limit.Cur/4))
	}
	return k
}

// at returns the open files of a directory; nil if none are ever kept.
func (k *Kept) at(path string) *dir {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.dirs[path]
	if d == nil {
		d = &dir{}
		k.dirs[path] = d
		if k.timer == nil {
			k.timer = time.AfterFunc(keepFor, k.sweep)
		}
	}
	d.used = true
	return d
}

// sweep closes the files that were not read since the last sweep.
func (k *Kept) sweep() {
	var unused []*dir
	k.mu.Lock()
	for path, d := range k.dirs {
		if !d.used {
			unused = append(unused, d)
			delete(k.dirs, path)
		}
		d.used = false
	}
	k.timer = nil
	if len(k.dirs) > 0 {
		k.timer = time.AfterFunc(keepFor, k.sweep)
	}
	k.mu.Unlock()
	for _, d := range unused {
		k.close(d)
	}
}

// close closes the open files of a directory that was removed from the table, and returns its
// children.
func (k *Kept) close(d *dir) (below []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.swept = true
	for len(d.files) > 0 {
		k.dropLocked(d, d.files[0].name)
	}
	return d.below
}

// Forget closes the open files of a cgroup's directory and of those below it, which were or will be
// removed, because an open file of theirs holds kernel memory.
func (k *Kept) Forget(path string) {
	if k == nil {
		return
	}
	k.mu.Lock()
	d := k.dirs[path]
	delete(k.dirs, path)
	k.mu.Unlock()
	if d == nil {
		return
	}
	for _, name := range k.close(d) {
		k.Forget(path + "/" + name)
	}
}

// descriptorLocked is one that is kept, or is now; false when it is not to be.
// The caller closes it in that case.
func (k *Kept) descriptorLocked(d *dir, path, name string) (fd int, kept bool, err error) {
	for _, f := range d.files {
		if f.name == name {
			return f.fd, true, nil
		}
	}
	if name != "" {
		path += "/" + name
	}
	count := k.count(name)
	if fd, err = open(path); err != nil || d.swept || count.Load() >= k.most {
		return fd, false, err
	}
	count.Add(1)
	d.files = append(d.files, file{name, fd})
	return fd, true, nil
}

// count counts the descriptors of the kind of name. Those of directories hold no page.
func (k *Kept) count(name string) *atomic.Int64 {
	if name == "" {
		return &k.openDirs
	}
	return &k.open
}

func (k *Kept) dropLocked(d *dir, name string) {
	d.files = slices.DeleteFunc(d.files, func(f file) bool {
		if f.name != name {
			return false
		}
		_ = unix.Close(f.fd)
		k.count(name).Add(-1)
		return true
	})
}

// with calls fn with a descriptor of a file in path, "" being path itself. A kept one that fails
// belongs to a removed cgroup; there may be another of its name, so it is opened again.
func (k *Kept) with(path, name string, fn func(fd int) error) error {
	d := k.at(path)
	if d == nil {
		return once(path, name, fn)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fd, kept, err := k.descriptorLocked(d, path, name)
	if err != nil {
		return err
	}
	if !kept {
		defer func() { _ = unix.Close(fd) }()
		return fn(fd)
	}
	if err := fn(fd); err == nil {
		return nil
	}
	k.dropLocked(d, name)
	return once(path, name, fn)
}

// within calls fn with a descriptor of a file in path, which it opens for fn alone. The kernel finds the
// file from the directory's open descriptor and walks no path. If the cgroup was removed, no file opens below that
// descriptor, and the path may lead to a new cgroup: within then opens the path.
func (k *Kept) within(path, name string, fn func(fd int) error) error {
	d := k.at(path)
	if d == nil || k.openDirs.Load() >= k.most {
		return once(path, name, fn)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, kept, err := k.descriptorLocked(d, path, "")
	if err != nil {
		return err
	}
	if !kept {
		_ = unix.Close(dir)
		return once(path, name, fn)
	}
	fd, err := openIn(dir, name)
	if err == nil {
		err = fn(fd)
		_ = unix.Close(fd)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENOENT) && unix.Faccessat(dir, "cgroup.procs", unix.F_OK, 0) == nil {
		return err // this kernel has no such file
	}
	k.dropLocked(d, "")
	return once(path, name, fn)
}

func openIn(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Text reads a file of a cgroup whole, without spaces around it; "" if there is none.
func (k *Kept) Text(dir, name string) (string, bool) {
	r, done := k.reader()
	defer done()
	b, ok := r.read(dir, name)
	return string(b), ok
}

func once(path, name string, fn func(fd int) error) error {
	if name != "" {
		path += "/" + name
	}
	fd, err := open(path)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return fn(fd)
}

// Pids lists the processes in and below the cgroup dir, ascending; none when it is
// gone. Zombies are not in it.
func (k *Kept) Pids(dir string) ([]int, error) {
	pids, _, err := k.pids(dir, nil)
	if err != nil {
		return nil, err
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// pids adds those of dir to found; there is false if it is gone.
func (k *Kept) pids(dir string, found []int) (pids []int, there bool, err error) {
	b, err := k.members(dir)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV):
		return found, false, nil
	case errors.Is(err, unix.EOPNOTSUPP): // a threaded cgroup: its domain lists them
	case err != nil:
		return nil, false, err
	}
	pids = found
	for line := range bytes.Lines(b) {
		pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
		if err == nil && pid > 0 { // 0: outside our pid namespace
			pids = append(pids, pid)
		}
	}
	own := len(pids)
	below, known, err := k.below(dir, false)
	for i := 0; err == nil && i < len(below); i++ {
		if pids, there, err = k.pids(dir+"/"+below[i], pids); err == nil && !there && known {
			below, known, err = k.below(dir, true)
			pids, i = pids[:own], -1
		}
	}
	return pids, true, err
}

// members reads cgroup.procs. That file is opened for each read: on v1 one that stays open returns
// the list of its first read for a second.
func (k *Kept) members(dir string) (b []byte, err error) {
	err = k.with(dir, "", func(fd int) error {
		b, err = readFrom(unix.Openat(fd, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0))
		return err
	})
	return b, err
}

// below names the directories in dir. Known ones were not listed now: they are all,
// if each of them is still there, for they are as many as there are links to dir
// from below.
func (k *Kept) below(path string, list bool) (names []string, known bool, err error) {
	var st unix.Stat_t
	if err := k.with(path, "", func(fd int) error { return unix.Fstat(fd, &st) }); err == nil && st.Nlink == 2 {
		return nil, false, nil
	}
	d := k.at(path)
	if d == nil {
		names, err = directories(path)
		return names, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !list && len(d.below) > 0 && int(st.Nlink) == len(d.below)+2 {
		return d.below, true, nil
	}
	if names, err = directories(path); err == nil {
		d.below = names
	}
	return names, false, err
}

// directories lists those in a directory; none when it is not there.
func directories(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
