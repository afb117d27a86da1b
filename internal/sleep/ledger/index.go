package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/longshore/longshore/internal/sleep/uffd"
)

// PageSize is the size of a page in bytes.
const PageSize = 4096

// BlockPages is the largest number of pages in a block. A thread that waits for a page waits for its block.
const BlockPages = 16

// Bounds of an index, which also bound the memory of its readers.
const (
	maxSpaces = 4096
	maxAreas  = 1 << 16
	maxBlocks = 1 << 24 // 4 TiB of full ones
)

// Index lists the pages of a file. It does not change after the file is complete.
type Index struct {
	Spaces []Space
}

// Space lists the pages of one address space.
type Space struct {
	Pid    int          // of a process that has it, in the first pid namespace
	Areas  []uffd.Range // the registered ranges, in the order of addresses
	Blocks []Block      // in the order of addresses
}

// Pages returns the number of pages in the blocks.
func (s *Space) Pages() (n uint64) {
	for _, b := range s.Blocks {
		n += uint64(b.Pages)
	}
	return n
}

// Block is a run of pages that are compressed together.
type Block struct {
	Addr   uint64 // of the first page
	Pages  uint32
	Size   uint32 // in the file
	Offset int64
}

const indexMagic = "LSSLEEP1"

// Encode writes the index, with a checksum at its end.
func (x *Index) Encode(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString(indexMagic)
	put := func(values ...uint64) {
		for _, v := range values {
			b.Write(binary.AppendUvarint(nil, v))
		}
	}
	put(uint64(len(x.Spaces)))
	for _, s := range x.Spaces {
		put(uint64(s.Pid), uint64(len(s.Areas)), uint64(len(s.Blocks)))
		for _, a := range s.Areas {
			put(a.Addr/PageSize, a.Len/PageSize)
		}
		for _, k := range s.Blocks {
			put(k.Addr/PageSize, uint64(k.Pages), uint64(k.Size), uint64(k.Offset))
		}
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(b.Bytes(), crc32.ChecksumIEEE(b.Bytes())))
	return err
}

// errIndex is the error of Decode.
var errIndex = errors.New("the index of the pages is damaged")

// Decode reads an index that Encode wrote, and checks that its blocks are in order and in its areas.
func Decode(data []byte) (*Index, error) {
	n := len(data) - 4
	if n < len(indexMagic) || string(data[:len(indexMagic)]) != indexMagic || crc32.ChecksumIEEE(data[:n]) != binary.LittleEndian.Uint32(data[n:]) {
		return nil, errIndex
	}
	d := decoder{data: data[len(indexMagic):n]}
	x := &Index{}
	for range d.count(maxSpaces) {
		s := Space{Pid: int(d.value(1<<31 - 1))}
		areas, blocks := d.count(maxAreas), d.count(maxBlocks)
		for range areas {
			s.Areas = append(s.Areas, uffd.Range{Addr: d.value(maxPage) * PageSize, Len: d.value(maxPage) * PageSize})
		}
		for range blocks {
			s.Blocks = append(s.Blocks, Block{Addr: d.value(maxPage) * PageSize, Pages: uint32(d.value(BlockPages)), Size: uint32(d.value(maxSize)), Offset: int64(d.value(1<<62 - 1))})
		}
		if d.bad || !s.ordered() {
			return nil, errIndex
		}
		x.Spaces = append(x.Spaces, s)
	}
	if d.bad || len(d.data) > 0 {
		return nil, errIndex
	}
	return x, nil
}

// maxPage bounds the number of a page, of addresses with 56 bits, and maxSize a block in the file.
const (
	maxPage = 1 << 44
	maxSize = 2 * BlockPages * PageSize
)

// decoder reads numbers. After the first bad one it returns zeros.
type decoder struct {
	data []byte
	bad  bool
}

func (d *decoder) value(most uint64) uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 || v > most {
		d.bad, d.data = true, nil
		return 0
	}
	d.data = d.data[n:]
	return v
}

// count reads a number of items. Each item has at least one byte.
func (d *decoder) count(most uint64) int { return int(d.value(min(most, uint64(len(d.data))))) }

func (s *Space) ordered() bool {
	end := uint64(0)
	for _, a := range s.Areas {
		if a.Len == 0 || a.Addr < end {
			return false
		}
		end = a.End()
	}
	end = 0
	area := 0
	for _, b := range s.Blocks {
		last := b.Addr + uint64(b.Pages)*PageSize
		if b.Pages == 0 || b.Size == 0 || b.Addr < end {
			return false
		}
		for area < len(s.Areas) && s.Areas[area].End() <= b.Addr {
			area++
		}
		if area == len(s.Areas) || b.Addr < s.Areas[area].Addr || last > s.Areas[area].End() {
			return false
		}
		end = last
	}
	return true
}

// Writer writes the blocks of a file.
type Writer struct {
	f    *os.File
	zstd *zstd.Encoder
	at   int64
	most int64
	buf  []byte
}

// ErrFull is Writer's error when the file would be larger than permitted.
var ErrFull = errors.New("the file of the pages would be larger than the limit")

// NewWriter writes to an empty file, at most that many bytes.
func NewWriter(f *os.File, most int64) (*Writer, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	if err != nil {
		return nil, err
	}
	return &Writer{f: f, zstd: e, most: most}, nil
}

// Add appends the content of pages, which begin at addr, as a block.
func (w *Writer) Add(addr uint64, pages []byte) (Block, error) {
	w.buf = w.zstd.EncodeAll(pages, w.buf[:0])
	b := Block{Addr: addr, Pages: uint32(len(pages) / PageSize), Size: uint32(len(w.buf)), Offset: w.at}
	if w.at+int64(len(w.buf)) > w.most {
		return Block{}, ErrFull
	}
	if _, err := w.f.WriteAt(w.buf, w.at); err != nil {
		return Block{}, err
	}
	w.at += int64(len(w.buf))
	return b, nil
}

// Written returns the number of written bytes.
func (w *Writer) Written() int64 { return w.at }

// Reader reads blocks.
type Reader struct {
	f    *os.File
	zstd *zstd.Decoder
	raw  []byte
}

// NewReader reads the blocks of a file.
func NewReader(f *os.File) (*Reader, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(BlockPages*PageSize))
	if err != nil {
		return nil, err
	}
	return &Reader{f: f, zstd: d}, nil
}

// Clone returns a further reader of the same file.
func (r *Reader) Clone() (*Reader, error) { return NewReader(r.f) }

// Read returns the content of a block. It uses the memory of buf, if that is enough.
func (r *Reader) Read(b Block, buf []byte) ([]byte, error) {
	if cap(r.raw) < int(b.Size) {
		r.raw = make([]byte, maxSize)
	}
	raw := r.raw[:b.Size]
	if _, err := r.f.ReadAt(raw, b.Offset); err != nil {
		return nil, fmt.Errorf("read the pages at %#x: %w", b.Addr, err)
	}
	content, err := r.zstd.DecodeAll(raw, buf[:0])
	if err != nil || len(content) != int(b.Pages)*PageSize {
		return nil, fmt.Errorf("the pages at %#x are damaged: %w", b.Addr, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return content, nil
}
