package stdio

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/keeper/kernel"
)

// Sink is one place where output is written: a file, raw or as CRI records, or
// a FIFO.
type Sink struct {
	CRI   bool
	Plain bool // the records have no tags
	Path  string
	// Below, if set, is a trusted directory above Path. The rest of the path is
	// resolved without following links, at each open.
	Below    string
	MaxBytes int64
	MaxFiles int
	// Numbered means that Path ends in .N and more files follow; see numbered.go.
	Numbered bool

	fd   int // -1 if it is not open
	fifo bool
	lost uint64 // bytes dropped since the last successful write
	why  unix.Errno
}

// NewSink returns a sink that is not open yet.
func NewSink() *Sink { return &Sink{fd: -1} }

// Open opens the sink's path if it is not open. It makes a file with mode 0640, or 0644 if it is
// one of several numbered ones. It opens a FIFO for reading and writing: that needs no reader,
// output waits in the pipe for one, and the end of a reader does not close the pipe for the next
// one. Links are not followed: containers reach the directories of sinks, and could otherwise make
// the keeper write where they cannot.
func (k *Sink) Open() error {
	if k.fd >= 0 {
		return nil
	}
	flags, mode := unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, uint32(0o640)
	if k.Numbered {
		k.findNumber()
		mode = 0o644 // such directories are read by other users
	}
	d, name, err := k.dir()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(d) }()
	var st unix.Stat_t
	k.fifo = unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isFIFO(&st)
	if k.fifo {
		flags = unix.O_RDWR
	}
	fd, err := beneath.At(d, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if err != nil {
		return err
	}
	if err := unix.Fstat(fd, &st); err != nil || isFIFO(&st) != k.fifo {
		_ = unix.Close(fd)
		if err == nil {
			err = unix.ESTALE // it was replaced in between
		}
		return err
	}
	k.fd = fd
	return nil
}

func isFIFO(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFIFO }

// dir opens the directory of the sink's files; name is that of the current file.
func (k *Sink) dir() (fd int, name string, err error) {
	dir, name := ".", k.Path
	if i := strings.LastIndexByte(k.Path, '/'); i >= 0 {
		dir, name = k.Path[:i+1], k.Path[i+1:]
	}
	if name == "" || name == "." || name == ".." {
		return -1, "", unix.EISDIR
	}
	if k.Below == "" {
		fd, err = beneath.Base(dir)
		return fd, name, err
	}
	rel, ok := beneath.Rel(k.Below, dir)
	if !ok {
		return -1, "", unix.EXDEV
	}
	base, err := beneath.Base(k.Below)
	if err != nil {
		return -1, "", err
	}
	defer func() { _ = unix.Close(base) }()
	fd, err = beneath.At(base, rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, name, err
}

// list returns the names in an open directory.
func list(dir int) []string { return kernel.ReadDir("/proc/self/fd/" + kernel.Itoa(dir)) }

// FIFO returns the descriptor of the open FIFO, or -1 if the sink is not a FIFO.
func (k *Sink) FIFO() int {
	if k.fifo {
		return k.fd
	}
	return -1
}

// Adopt gives the sink a FIFO that is already open.
func (k *Sink) Adopt(fd int) { k.fd, k.fifo = fd, true }

// Close closes the sink; the next write opens it again.
func (k *Sink) Close() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
		k.fd = -1
	}
}

// Reopen opens the path again. If that fails, the old file stays in use.
func (k *Sink) Reopen() error {
	if k.fifo {
		return nil
	}
	old := k.fd
	k.fd = -1
	if err := k.Open(); err != nil {
		k.fd = old
		return err
	}
	if old >= 0 {
		_ = unix.Close(old)
	}
	return nil
}

// marker returns the line that says how much output was lost.
func (k *Sink) marker(out, ts []byte, stderr bool) []byte {
	if k.lost == 0 {
		return out
	}
	var text []byte
	text = append(text, "longshore: "...)
	text = append(text, kernel.Itoa(int(k.lost))...)
	text = append(text, " bytes of output lost: "...)
	text = append(text, k.why.Error()...)
	text = append(text, '\n')
	if !k.CRI {
		return append(out, text...)
	}
	out, _ = records{k.Plain}.append(out, text, ts, stderr, 1<<30)
	return out
}

// fail counts bytes that the sink did not take.
func (k *Sink) fail(n int, err error) int {
	if n > 0 {
		k.lost += uint64(n)
		k.why = kernel.Errno(err)
	}
	return n
}

// put writes data as the sink's part of a transaction and returns how many
// bytes of it were lost. out is room for formatting.
func (k *Sink) put(s *slot, w what) (lost int) {
	if err := k.Open(); err != nil {
		return k.fail(len(w.data), err)
	}
	if k.fifo {
		return k.putFIFO(s, w)
	}
	var st unix.Stat_t
	if err := unix.Fstat(k.fd, &st); err != nil {
		return k.fail(len(w.data), err)
	}
	regular := st.Mode&unix.S_IFMT == unix.S_IFREG
	head := k.marker(nil, w.ts, w.stderr)
	if regular && k.MaxBytes > 0 && st.Size > 0 {
		size := int64(len(w.data))
		if k.CRI {
			size = records{k.Plain}.size(w.data)
		}
		if st.Size+size+int64(len(head)) > k.MaxBytes {
			k.rotate()
			if err := k.Open(); err != nil {
				return k.fail(len(w.data), err)
			}
			if err := unix.Fstat(k.fd, &st); err != nil {
				return k.fail(len(w.data), err)
			}
		}
	}
	s.dev, s.ino, s.off, s.fifo = st.Dev, st.Ino, st.Size, 0
	if !regular {
		s.ino = 0
	}
	s.set(begun)
	lost = k.write(w, head, st.Size, regular)
	s.set(done)
	return lost
}

// write appends the marker and the data to the file. If the file takes only a part,
// the whole records of that part stay and the rest is cut off.
func (k *Sink) write(w what, head []byte, size int64, regular bool) int {
	left := w.data
	if len(head) > 0 {
		n, err := writeSome(k.fd, head)
		if err != nil || n < len(head) {
			if regular && n > 0 {
				_ = unix.Ftruncate(k.fd, size)
			}
			return k.fail(len(left), err)
		}
		k.lost = 0
		size += int64(n)
	}
	if !k.CRI {
		n, err := writeSome(k.fd, left)
		return k.fail(len(left)-n, err)
	}
	for len(left) > 0 {
		out, rest := records{k.Plain}.append(w.out[:0], left, w.ts, w.stderr, outLimit)
		n, err := writeSome(k.fd, out)
		if n < len(out) {
			kept, used := records{k.Plain}.whole(out, left, n)
			if regular && kept < n {
				_ = unix.Ftruncate(k.fd, size+int64(kept))
			}
			return k.fail(len(left)-used, err)
		}
		size += int64(n)
		left = rest
	}
	return 0
}

// putFIFO writes to a FIFO as much as it has room for. The slot counts the written bytes, so that a
// redo continues there.
func (k *Sink) putFIFO(s *slot, w what) int {
	s.fifo = 1
	skip := int64(0)
	if s.state == begun {
		skip = s.off
	}
	s.set(begun)
	left := w.data
	if head := k.marker(nil, w.ts, w.stderr); len(head) > 0 && skip == 0 {
		if n, err := writeSome(k.fd, head); err != nil || n < len(head) {
			s.set(done)
			return k.fail(len(left), unix.EAGAIN)
		}
		k.lost = 0
	}
	for len(left) > 0 {
		out, rest := left, []byte(nil)
		if k.CRI {
			out, rest = records{k.Plain}.append(w.out[:0], left, w.ts, w.stderr, outLimit)
		}
		if skip >= int64(len(out)) {
			skip -= int64(len(out))
			left = rest
			continue
		}
		n, err := writeSome(k.fd, out[skip:])
		s.off += int64(n)
		n += int(skip)
		skip = 0
		if n < len(out) {
			used := n
			if k.CRI {
				_, used = records{k.Plain}.whole(out, left, n)
			}
			s.set(done)
			return k.fail(len(left)-used, err)
		}
		left = rest
	}
	s.set(done)
	return 0
}

// rotate makes room for a new file: the current one becomes Path.1. If a rename fails, the current
// file continues to grow.
func (k *Sink) rotate() {
	if k.Numbered {
		k.nextNumber()
		return
	}
	d, name, err := k.dir()
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(d) }()
	if k.MaxFiles <= 1 {
		if unix.Unlinkat(d, name, 0) == nil {
			k.Close()
		}
		return
	}
	for i := k.MaxFiles - 1; i > 1; i-- {
		_ = unix.Renameat(d, name+"."+kernel.Itoa(i-1), d, name+"."+kernel.Itoa(i))
	}
	if unix.Renameat(d, name, d, name+".1") == nil {
		k.Close()
	}
}

// redo repeats the sink's part of a transaction that a crash cut short.
func (k *Sink) redo(s *slot, w what) int {
	switch s.state {
	case done:
		return 0
	case untouched:
		return k.put(s, w)
	}
	if s.fifo != 0 {
		if err := k.Open(); err != nil {
			return k.fail(len(w.data), err)
		}
		if k.fifo {
			return k.putFIFO(s, w)
		}
		return 0
	}
	if s.ino == 0 { // a device: written bytes cannot be removed
		return 0
	}
	fd := k.find(s.dev, s.ino)
	if fd < 0 { // the file is gone, with its lines
		s.state = untouched
		return k.put(s, w)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, s.off); err != nil {
		return k.fail(len(w.data), err)
	}
	old := k.fd
	k.fd = fd
	lost := k.write(w, k.marker(nil, w.ts, w.stderr), s.off, true)
	k.fd = old
	s.set(done)
	return lost
}

// find opens the file with that inode, at the path or beside it under any other name.
// It returns -1 if there is none.
func (k *Sink) find(dev, ino uint64) int {
	d, name, err := k.dir()
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(d) }()
	if fd := openIf(d, name, dev, ino); fd >= 0 {
		return fd
	}
	for _, name := range list(d) {
		if fd := openIf(d, name, dev, ino); fd >= 0 {
			return fd
		}
	}
	return -1
}

func openIf(dir int, name string, dev, ino uint64) int {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != dev || st.Ino != ino || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1
	}
	fd, err := beneath.At(dir, name, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	if unix.Fstat(fd, &st) != nil || st.Dev != dev || st.Ino != ino {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// End closes a file after the last output, with its marker if output was lost. Of a
// FIFO it keeps only a writing end. That holds the bytes in the FIFO and is not a
// reader, so that Served can see whether there is one. End reports whether it kept the
// FIFO.
func (k *Sink) End(ts []byte) (waits bool) {
	if !k.fifo {
		if k.lost > 0 && k.Open() == nil {
			var s slot
			k.put(&s, what{ts: ts, out: make([]byte, 0, 256)})
		}
		k.Close()
		return false
	}
	if k.fd < 0 {
		return false
	}
	w := k.writingEnd()
	if w < 0 { // the name is gone, so no reader can come
		k.Close()
		return false
	}
	_ = unix.Close(k.fd)
	k.fd = w
	return true
}

// writingEnd opens the FIFO for writing only, by its name. It returns -1 if the name
// does not mean this FIFO any more.
func (k *Sink) writingEnd() int {
	d, name, err := k.dir()
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(d) }()
	w, err := beneath.At(d, name, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	var is, was unix.Stat_t
	if unix.Fstat(w, &is) != nil || unix.Fstat(k.fd, &was) != nil || is.Dev != was.Dev || is.Ino != was.Ino {
		_ = unix.Close(w)
		return -1
	}
	return w
}

// Served closes an ended FIFO if it is empty or has a reader, which then sees its end.
// It reports false while the content still waits for a reader.
func (k *Sink) Served() bool {
	if k.fd < 0 {
		return true
	}
	if kernel.Available(k.fd) > 0 && kernel.Revents(k.fd, unix.POLLOUT)&unix.POLLERR != 0 {
		return false
	}
	k.Close()
	return true
}

func (s *slot) set(state uint32) { storeState(&s.state, state) }

// writeSome writes until everything is written or an error comes, and returns how much
// was written.
func writeSome(fd int, b []byte) (int, error) {
	n := 0
	for n < len(b) {
		k, err := unix.Write(fd, b[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}
