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
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Options select entries. The zero Options read the whole log.
type Options struct {
	// Follow continues with new output, until Ended is closed or the context ends.
	Follow bool
	// Ended is closed when nothing more will be written to the sink: Follow then ends at the end
	// of the file. nil is never closed.
	Ended <-chan struct{}
	// Tail begins with the last Tail lines; 0 is all, negative is no earlier entry.
	Tail int
	// Begun, when not nil, is called when the starting point is known: everything written
	// afterwards will be read.
	Begun func()
	// From, when not nil, begins after this position in place of Tail, and fills Entry.End. The zero Position is the
	// begin of the oldest file.
	From *Position
	// Idle, when not nil, is called before a follower waits, and at the end: all present entries were passed on.
	Idle func() error
	// Lost, when not nil, is called when a rotation has removed output before fn took it: with the number of lines, or with
	// -1 if nobody knows it. A follower keeps the files that are not read yet open, so that it can count them. It is called by
	// another goroutine than fn.
	Lost func(lines int)
	// Since and Until, when not zero, limit the times. They require a format that has times.
	Since, Until time.Time
}

// maxLine bounds the memory for one line, in bytes; a longer one is split.
const maxLine = 1 << 20

// Read calls fn for each entry of a sink, oldest first, from the rotated files to the current one.
// Entry.Text is valid only until fn returns. Read stops at an error of fn and returns it. Lines
// that are not in the sink's format are skipped. A sink without a file yet is empty.
func Read(ctx context.Context, sink core.Sink, o Options, fn func(Entry) error) error {
	if !sink.Format.Records() && (!o.Since.IsZero() || !o.Until.IsZero()) {
		return fmt.Errorf("read log %s: its lines have no times: %w", sink.Path, errdefs.ErrInvalidArgument)
	}
	r := &reader{sink: sink, o: o, fn: fn, open: openRegular}
	defer r.close()
	if err := r.read(ctx); err != nil && !errors.Is(err, errDone) {
		return fmt.Errorf("read log %s: %w", sink.Path, err)
	}
	return nil
}

// errDone ends reading early, without an error.
var errDone = errors.New("done")

// reader reads the files of one sink, one after the other.
type reader struct {
	sink core.Sink
	o    Options
	fn   func(Entry) error
	f    *os.File
	br   *bufio.Reader // nil while nothing is read
	off  int64
	buf  []byte // the incomplete last line
	file place  // f's; empty without Options.From
	held *held  // the files after f; nil without Options.Lost
	// watch is nil when the sink is not followed.
	watch *watch
	// open opens one of the sink's files; nil when there is no regular one.
	open func(sink core.Sink, path string) (*os.File, error)
}

func (r *reader) close() {
	r.rest()
	if r.f != nil {
		_ = r.f.Close()
	}
}

func (r *reader) read(ctx context.Context) error {
	if r.o.Follow {
		// Watch before the first look, so that nothing in between is missed.
		var err error
		if r.watch, err = newWatch(r.sink); err != nil {
			return err
		}
		defer r.watch.close()
	}
	if err := r.begin(); err != nil {
		return err
	}
	if r.o.Follow && r.o.Lost != nil {
		stop, err := r.hold()
		if err != nil {
			return err
		}
		defer stop()
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
			return errors.Join(r.flush(), r.idle())
		}
		if err := errors.Join(r.fragment(), r.idle()); err != nil {
			return err
		}
		r.rest()
		if err := r.watch.wait(ctx, r.o.Ended); err != nil {
			return err
		}
	}
}

func (r *reader) idle() error {
	if r.o.Idle == nil {
		return nil
	}
	return r.o.Idle()
}

func (r *reader) ended() bool {
	select {
	case <-r.o.Ended:
		return true
	default:
		return false
	}
}

// begin opens the first file at the starting point.
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
	case r.o.From != nil:
		return r.resume(files)
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
// It opens the newest first. Rotation gives each file the name of the next older one, so that a
// file which is renamed meanwhile is found twice and none is missed.
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
	if r.o.From != nil {
		r.file = placeOf(f)
	}
	if r.watch != nil {
		if err := r.watch.use(f); err != nil {
			return err
		}
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if r.br != nil {
		r.br.Reset(f)
	}
	return nil
}

// buffers are those of readers that read just now: one that waits has none.
var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 32<<10) }} //nolint:gochecknoglobals // see there

// rest frees a reader's buffers. The whole file has been read.
func (r *reader) rest() {
	if r.br != nil {
		r.br.Reset(nil)
		buffers.Put(r.br)
		r.br = nil
	}
	if len(r.buf) == 0 && cap(r.buf) > 4096 {
		r.buf = nil
	}
}

// drain reads all files to the present end of the last one.
func (r *reader) drain(ctx context.Context) error {
	for {
		if r.f == nil {
			f, err := r.first()
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
		// The writer may have written between our last read and the rename.
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

// first opens the first file of a sink that had none.
func (r *reader) first() (*os.File, error) {
	if r.held != nil {
		return r.held.next()
	}
	return r.open(r.sink, current(r.sink))
}

// next opens the file that follows the one being read; nil when that is the current one.
func (r *reader) next() (*os.File, error) {
	mine, err := r.f.Stat()
	if err != nil {
		return nil, err
	}
	if mine.Size() < r.off { // it was truncated
		return nil, r.use(r.f, 0)
	}
	if r.held != nil {
		return r.held.next()
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
		// Somebody else has renamed it. It is still the current file until there is another one.
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

// lines passes on the complete lines up to the present end of the file.
func (r *reader) lines(ctx context.Context) error {
	if r.br == nil {
		r.br, _ = buffers.Get().(*bufio.Reader)
		r.br.Reset(r.f)
	}
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

// fragment passes on an incomplete line of a raw sink, so that prompts are seen. In the CRI
// format an incomplete line is still being written.
func (r *reader) fragment() error {
	if r.sink.Format.Records() {
		return nil
	}
	return r.flush()
}

// flush passes the read bytes on.
func (r *reader) flush() error {
	if len(r.buf) == 0 {
		return nil
	}
	line, whole := bytes.CutSuffix(r.buf, []byte{'\n'})
	r.buf = r.buf[:0]
	end := r.position()
	if !r.sink.Format.Records() {
		return r.fn(Entry{Text: line, Partial: !whole, End: end})
	}
	e, err := parse(r.sink.Format, line)
	if err != nil || !r.o.Since.IsZero() && e.At.Before(r.o.Since) {
		return nil //nolint:nilerr // a damaged line is skipped
	}
	if !r.o.Until.IsZero() && e.At.After(r.o.Until) {
		return errDone
	}
	e.End = end
	return r.fn(e)
}

// tailStart finds where the last n lines of f begin, and how many there are. In the CRI format, a
// line counts when it ends one of the program's lines.
func tailStart(f *os.File, format core.Format, n int) (at int64, found int, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	const chunk = 64 << 10
	var rest []byte // the beginning of the text after pos, up to its first LF
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
			// b ends with the line being examined.
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
