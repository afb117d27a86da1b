package logs

import (
	"bytes"
	"io"
	"os"
	"syscall"
)

// headBytes is enough of a file to distinguish it from others: a record begins with its time, in nanoseconds.
const headBytes = 40

// Position is a place in the files of a sink: a reader that begins there reads everything after it.
type Position struct {
	Inode  uint64 `json:"inode,omitempty"`
	Head   []byte `json:"head,omitempty"` // the first bytes of the file, because a later one may have its inode
	Offset int64  `json:"offset,omitempty"`
}

// place identifies a file.
type place struct {
	inode uint64
	head  []byte
}

// placeOf returns the place of an open file; it is empty if the file cannot be read.
func placeOf(f *os.File) (p place) {
	info, err := f.Stat()
	if err != nil {
		return p
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		p.inode = st.Ino
	}
	p.head = headOf(f)
	return p
}

func headOf(f *os.File) []byte {
	b := make([]byte, headBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil
	}
	return b[:n]
}

// position returns the reader's place.
func (r *reader) position() Position {
	if r.o.From == nil {
		return Position{}
	}
	if len(r.file.head) < headBytes && r.off > int64(len(r.file.head)) {
		r.file.head = headOf(r.f)
	}
	return Position{r.file.inode, r.file.head, r.off}
}

// resume begins at Options.From. Without its file, which was removed, it begins at the oldest one.
func (r *reader) resume(files []*os.File) error {
	for _, f := range files {
		if r.o.From.in(f) {
			return r.use(f, r.o.From.Offset)
		}
	}
	if r.o.From.Offset > 0 && r.o.Lost != nil {
		r.o.Lost(-1)
	}
	return r.use(files[0], 0)
}

// in reports whether f is the file of a position.
func (p *Position) in(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() < p.Offset || p.Offset == 0 {
		return false
	}
	is := placeOf(f)
	n := min(len(p.Head), len(is.head))
	return is.inode == p.Inode && n > 0 && bytes.Equal(is.head[:n], p.Head[:n])
}
