package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Options says what to read. The zero Options is all that is there now.
type Options struct {
	// Follow goes on with what is written later, until Ended or the context's
	// end.
	Follow bool
	// Ended is closed when the sink gets no more: Follow then ends at the end
	// of what is there. nil never is.
	Ended <-chan struct{}
	// Tail begins with the last so many lines; 0 is all, negative is none of
	// what is there.
	Tail int
	// Begun, when not nil, is called once it is settled where to begin: what is
	// written from then on will be read.
	Begun func()
	// Since and Until, when not zero, bound the times. They need a format
	// that has times.
	Since, Until time.Time
}

// maxLine bounds the memory for one line; a longer one comes in pieces.
const maxLine = 1 << 20

// Read calls fn for each entry of a sink, oldest first, through the rotated
// files to the current one. Entry.Text is fn's only until it returns. An error
// of fn ends it and is returned. A line that is not of the sink's format is left
// out. A sink whose file is not there yet is empty.
func Read(ctx context.Context, sink core.Sink, o Options, fn func(Entry) error) error {
	if sink.Format != core.FormatCRI && (!o.Since.IsZero() || !o.Until.IsZero()) {
		return fmt.Errorf("read log %s: its lines have no times: %w", sink.Path, errdefs.ErrInvalidArgument)
	}
	r := &reader{sink: sink, o: o, fn: fn, buf: make([]byte, 0, 4096), open: openRegular}
	defer r.close()
	if err := r.read(ctx); err != nil && !errors.Is(err, errDone) {
		return fmt.Errorf("read log %s: %w", sink.Path, err)
	}
	return nil
}

// errDone ends the reading early, without an error.
var errDone = errors.New("done")

// reader goes through the files of one sink.
type reader struct {
	sink core.Sink
	o    Options
	fn   func(Entry) error
	f    *os.File
	br   *bufio.Reader
	off  int64
	buf  []byte // the begun line
	// open opens one of the sink's files; nil when there is no regular one.
	open func(sink core.Sink, path string) (*os.File, error)
}

func (r *reader) close() {
	if r.f != nil {
		_ = r.f.Close()
	}
}

func (r *reader) read(ctx context.Context) error {
	var w *watch
	if r.o.Follow {
		// Before the first look, so that nothing is missed in between.
		var err error
		if w, err = newWatch(r.sink); err != nil {
			return err
		}
		defer w.close()
	}
	if err := r.begin(); err != nil {
		return err
	}
	if r.o.Begun != nil {
		r.o.Begun()
	}
	for {
		ended := r.ended()
		if err := r.drain(ctx); err != nil {
			return err
		}
		if !r.o.Follow || ended {
			return r.flush()
		}
		if err := r.fragment(); err != nil {
			return err
		}
		if err := w.wait(ctx, r.o.Ended); err != nil {
			return err
		}
	}
}

func (r *reader) ended() bool {
	select {
	case <-r.o.Ended:
		return true
	default:
		return false
	}
}

// begin opens the file to start with, at the place to start at.
func (r *reader) begin() error {
	files, err := r.files()
	if err != nil || len(files) == 0 {
		return err
	}
	defer func() {
		for _, f := range files {
			if f != r.f {
				_ = f.Close()
			}
		}
	}()
	last := files[len(files)-1]
	switch {
	case r.o.Tail == 0:
		return r.use(files[0], 0)
	case r.o.Tail < 0:
		end, err := last.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		return r.use(last, end)
	}
	left := r.o.Tail
	for i := len(files) - 1; i >= 0; i-- {
		at, n, err := tailStart(files[i], r.sink.Format, left)
		if err != nil {
			return err
		}
		if left -= n; left <= 0 || i == 0 {
			return r.use(files[i], at)
		}
	}
	return nil
}

// files opens the rotated files and the current one, oldest first.
//
// It looks for the newest first. A rotation gives each file the name of the next
// older one, so that a file which is renamed meanwhile is found once more, and none
// is passed over.
func (r *reader) files() (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var last os.FileInfo
	for _, name := range slices.Backward(names(r.sink)) {
		f, err := r.open(r.sink, name)
		if err != nil {
			return files, err
		}
		if f == nil {
			continue
		}
		files = append(files, f)
		info, err := f.Stat()
		if err != nil {
			return files, err
		}
		if last != nil && os.SameFile(info, last) {
			files = files[:len(files)-1]
			_ = f.Close()
		}
		last = info
	}
	slices.Reverse(files)
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (r *reader) use(f *os.File, at int64) error {
	if r.f != nil && r.f != f {
		_ = r.f.Close()
	}
	r.f, r.off = f, at
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if r.br == nil {
		r.br = bufio.NewReaderSize(f, 64<<10)
	} else {
		r.br.Reset(f)
	}
	return nil
}

// drain reads to the end of all that is there, file after file.
func (r *reader) drain(ctx context.Context) error {
	for {
		if r.f == nil {
			f, err := r.open(r.sink, current(r.sink))
			if err != nil || f == nil {
				return err
			}
			if err := r.use(f, 0); err != nil {
				return err
			}
		}
		if err := r.lines(ctx); err != nil {
			return err
		}
		next, err := r.next()
		if err != nil || next == nil {
			return err
		}
		// The writer may have written between our end and its rename.
		if err := r.lines(ctx); err != nil {
			return errors.Join(err, next.Close())
		}
		if err := r.flush(); err != nil {
			return errors.Join(err, next.Close())
		}
		if err := r.use(next, 0); err != nil {
			return err
		}
	}
}

// next opens the file that follows the one being read, nil when that is the
// current one.
func (r *reader) next() (*os.File, error) {
	mine, err := r.f.Stat()
	if err != nil {
		return nil, err
	}
	if mine.Size() < r.off { // truncated
		return nil, r.use(r.f, 0)
	}
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	at := -1
	for i, f := range files {
		if info, err := f.Stat(); err == nil && os.SameFile(info, mine) {
			at = i
		}
	}
	if at < 0 && linked(mine) {
		// Somebody else renamed it: it was the current one, and goes on
		// until there is another.
		closeAll(files)
		return r.open(r.sink, current(r.sink))
	}
	pick := at + 1
	var next *os.File
	for i, f := range files {
		if i == pick {
			next = f
			continue
		}
		_ = f.Close()
	}
	return next, nil
}

// linked reports whether a file still has a name.
func linked(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 0
}

// lines hands over the whole lines up to the file's present end.
func (r *reader) lines(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		part, err := r.br.ReadSlice('\n')
		r.off += int64(len(part))
		r.buf = append(r.buf, part...)
		switch {
		case err == nil || errors.Is(err, bufio.ErrBufferFull):
			if !bytes.HasSuffix(r.buf, []byte{'\n'}) && len(r.buf) < maxLine {
				continue
			}
			if err := r.flush(); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// fragment hands over a begun line of a raw sink, so that a prompt is seen. In
// the CRI format a begun line is one that is being written.
func (r *reader) fragment() error {
	if r.sink.Format == core.FormatCRI {
		return nil
	}
	return r.flush()
}

// flush hands over what has been read.
func (r *reader) flush() error {
	if len(r.buf) == 0 {
		return nil
	}
	line, whole := bytes.CutSuffix(r.buf, []byte{'\n'})
	r.buf = r.buf[:0]
	if r.sink.Format != core.FormatCRI {
		return r.fn(Entry{Text: line, Partial: !whole})
	}
	e, err := ParseCRI(line)
	if err != nil || !r.o.Since.IsZero() && e.At.Before(r.o.Since) {
		return nil //nolint:nilerr // a torn line is left out
	}
	if !r.o.Until.IsZero() && e.At.After(r.o.Until) {
		return errDone
	}
	return r.fn(e)
}

// tailStart finds where the last n lines of f begin, and how many there are.
// Lines of the CRI format count when they end one of the program's.
func tailStart(f *os.File, format core.Format, n int) (at int64, found int, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	const chunk = 64 << 10
	var rest []byte // the begin of the text behind pos, up to its first LF
	pos := end
	for pos > 0 {
		size := min(chunk, pos)
		pos -= size
		b := make([]byte, size, int(size)+len(rest))
		if _, err := f.ReadAt(b, pos); err != nil {
			return 0, 0, err
		}
		b = append(b, rest...)
		for {
			// b ends with the line under consideration.
			body := bytes.TrimSuffix(b, []byte{'\n'})
			i := bytes.LastIndexByte(body, '\n')
			if i < 0 {
				break
			}
			if endsLine(format, body[i+1:]) {
				if found == n {
					return pos + int64(len(b)), n, nil
				}
				found++
			}
			b = b[:i+1]
		}
		if len(b) > maxLine {
			return pos, found, nil
		}
		rest = b
	}
	if len(rest) > 0 && endsLine(format, bytes.TrimSuffix(rest, []byte{'\n'})) {
		if found == n {
			return int64(len(rest)), n, nil
		}
		found++
	}
	return 0, found, nil
}

func endsLine(format core.Format, line []byte) bool {
	if format != core.FormatCRI {
		return true
	}
	e, err := ParseCRI(line)
	return err == nil && !e.Partial
}

// watch wakes the reader when a file of the sink's directory changes.
type watch struct {
	f    *os.File
	wake chan error
}

func newWatch(sink core.Sink) (*watch, error) {
	dir, err := openDir(sink)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &watch{f: os.NewFile(uintptr(fd), "inotify"), wake: make(chan error, 1)}
	const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE
	if _, err := unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), mask); err != nil {
		return nil, errors.Join(os.NewSyscallError("inotify_add_watch", err), w.f.Close())
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			_, err := w.f.Read(buf)
			select {
			case w.wake <- err:
			default: // one is waiting already
			}
			if err != nil {
				close(w.wake)
				return
			}
		}
	}()
	return w, nil
}

func (w *watch) wait(ctx context.Context, ended <-chan struct{}) error {
	select {
	case err := <-w.wake:
		return err
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close ends the goroutine as well.
func (w *watch) close() {
	_ = w.f.Close()
	for range w.wake {
	}
}
