package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// held keeps the files of a sink open that its reader has not begun, while the reader waits for a slow taker of entries. It keeps as
// many as the sink has: it drops an older one, which was removed, and counts its lines.
type held struct {
	r *reader

	mu    sync.Mutex // guards files, last
	files []*os.File // oldest first
	last  *os.File   // the newest file that was seen, which is open; nil before the first
}

// hold begins to keep files, until stop is called.
func (r *reader) hold() (stop func(), err error) {
	h := &held{r: r, last: r.f}
	w, err := newWatch(r.sink)
	if err != nil {
		return nil, err
	}
	r.held = h
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for h.look() == nil && w.wait(ctx, nil) == nil {
			continue
		}
	}()
	return func() {
		cancel()
		<-done
		w.close()
		closeAll(h.files)
	}, nil
}

// next returns the next file, nil if there is none.
func (h *held) next() (*os.File, error) {
	if err := h.look(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.files) == 0 {
		return nil, nil //nolint:nilnil // the reader has the current file
	}
	first := h.files[0]
	h.files = h.files[1:]
	return first, nil
}

// look opens the files that have appeared.
func (h *held) look() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	files, err := h.r.files()
	if err != nil {
		return err
	}
	at := -1
	if h.last != nil && len(files) > 0 {
		is, err := h.last.Stat()
		if err != nil {
			closeAll(files)
			return err
		}
		at = slices.IndexFunc(files, func(f *os.File) bool {
			info, err := f.Stat()
			return err == nil && os.SameFile(info, is)
		})
		switch {
		case at < 0 && linked(is):
			at = len(files) - 2 // somebody else has renamed it, and the current file follows
		case at < 0:
			h.r.o.Lost(-1)
		}
	}
	closeAll(files[:at+1])
	for _, f := range files[at+1:] {
		h.files, h.last = append(h.files, f), f
	}
	for len(h.files) > max(h.r.sink.MaxFiles, 1) {
		h.r.o.Lost(countLines(h.r.sink.Format, h.files[0]))
		_ = h.files[0].Close()
		h.files = h.files[1:]
	}
	return nil
}

// countLines returns the number of the program's lines in a file.
func countLines(format core.Format, f *os.File) (n int) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0
	}
	in := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		ends := endsLine(format, bytes.TrimSuffix(line, []byte{'\n'}))
		for errors.Is(err, bufio.ErrBufferFull) { // the beginning says all
			_, err = in.ReadSlice('\n')
		}
		if err != nil {
			return n
		}
		if ends {
			n++
		}
	}
}
