package layer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxWindow bounds a zstd frame's window, and so the decoder's memory, in bytes.
const maxWindow = 128 << 20

// refused are the formats that the field's tools make and that are refused by their names, by the
// first bytes of a stream.
var refused = []struct{ magic, name string }{
	{"\xfd7zXZ\x00", "xz"},
	{"BZh", "bzip2"},
}

// decompress recognizes gzip, zstd and plain bytes by their beginning, because media types may be
// wrong.
func decompress(r io.Reader) (io.ReadCloser, error) {
	buf := bufio.NewReaderSize(r, 64<<10)
	magic, err := buf.Peek(6)
	if err != nil && len(magic) == 0 && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b, 0x08}):
		return newGzipReader(buf)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) >= 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:4], []byte{0x2a, 0x4d, 0x18}):
		d, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	for _, f := range refused {
		if bytes.HasPrefix(magic, []byte(f.magic)) {
			return nil, fmt.Errorf("it is compressed with %s, and only gzip, zstd and uncompressed archives can be read: compress it with one of these", f.name)
		}
	}
	return io.NopCloser(buf), nil
}

// gzipReader reads gzip members, one after the other. Zero bytes behind the last one are ignored,
// as gzip does: some tools pad a layer to blocks of a fixed size.
type gzipReader struct {
	*gzip.Reader
	from *bufio.Reader
}

func newGzipReader(from *bufio.Reader) (io.ReadCloser, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &gzipReader{z, from}, nil
}

// Read implements io.Reader.
func (g *gzipReader) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	for {
		b, err := g.from.Peek(1)
		if err != nil {
			return n, err
		}
		if b[0] != 0 {
			break
		}
		_, _ = g.from.Discard(1) // Peek has read it
	}
	if err := g.Reset(g.from); err != nil {
		return n, err
	}
	g.Multistream(false)
	return n, nil
}

// Decompress opens an archive that may be compressed with gzip or zstd.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	rc, err := decompress(r)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return rc, nil
}

// statEvery is after how many bytes the free space is checked again.
const statEvery = 32 << 20

// limitedReader ends a layer that is too large before the disk is full.
type limitedReader struct {
	r           io.Reader
	left, limit int64
	dir         string
	minFree     int64
	unchecked   int64
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.limit > 0 {
		if l.left -= int64(n); l.left < 0 {
			return 0, fmt.Errorf("more than %d bytes uncompressed: %w", l.limit, errdefs.ErrResourceExhausted)
		}
	}
	if l.unchecked -= int64(n); l.minFree > 0 && l.unchecked < 0 {
		l.unchecked = statEvery
		if serr := CheckFree(l.dir, l.minFree); serr != nil {
			return 0, serr
		}
	}
	return n, err
}

// CheckFree returns ResourceExhausted when fewer than least bytes are free on the filesystem of
// dir.
func CheckFree(dir string, least int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < least || least < 0 {
		return fmt.Errorf("only %d bytes are free in %s, %d are to stay free: %w", free, dir, least, errdefs.ErrResourceExhausted)
	}
	return nil
}
