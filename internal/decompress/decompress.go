// Package decompress reads tars that may be compressed, by their first bytes: gzip, zstd, bzip2 and xz.
package decompress

import (
	"bufio"
	"compress/bzip2"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// The first bytes of each form.
const (
	Gzip  = "\x1f\x8b"
	Zstd  = "\x28\xb5\x2f\xfd"
	Bzip2 = "BZh"
	Xz    = "\xfd7zXZ\x00"
)

// maxWindow is the memory for the window of zstd and the dictionary of xz, as much as zstd's own command line takes.
const maxWindow = 128 << 20

// Reader returns the plain content of r. Close frees its memory and does not close r.
func Reader(r io.Reader) (io.ReadCloser, error) {
	b, ok := r.(*bufio.Reader)
	if !ok {
		b = bufio.NewReader(r)
	}
	head, err := b.Peek(len(Xz))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch magic := string(head); {
	case strings.HasPrefix(magic, Gzip):
		return gzip.NewReader(b)
	case strings.HasPrefix(magic, Zstd):
		d, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case strings.HasPrefix(magic, Bzip2):
		return io.NopCloser(bzip2.NewReader(b)), nil
	case strings.HasPrefix(magic, Xz):
		d, err := xz.ReaderConfig{DictCap: maxWindow}.NewReader(b)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(d), nil
	}
	return io.NopCloser(b), nil
}
