// Package xz reads files that xz has packed. The format around what is packed is read
// here, as only so it can be said how much memory that may take; the rest is a
// library's.
//
// It knows nothing of where files come from. Start at NewReader.
package xz

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"slices"

	"github.com/ulikunitz/xz/lzma"
)

// MaxDictionary is how much of what was unpacked a file may want to look back at, in
// bytes: as much as xz -9 does. It is the memory that a Reader takes.
const MaxDictionary = 64 << 20

// What all blocks of a file may want together: making room for it takes time, which
// small blocks with large dictionaries would have taken again and again.
const (
	freeDictionaries = 16 * MaxDictionary
	perByte          = 256 // further bytes, for each that was unpacked
)

// Errors of files that are not what they should be.
var (
	errFormat   = errors.New("not in the format of xz")                 //nolint:gochecknoglobals // an error value
	errChecksum = errors.New("a checksum of the xz file does not hold") //nolint:gochecknoglobals // an error value
)

// Reader unpacks.
type Reader struct {
	from  *counter
	flags [2]byte
	check func() hash.Hash // of a block's content; nil for none
	block *block           // nil between two
	seen  index
	asked uint64 // bytes of dictionaries, of all blocks
	given uint64 // bytes of content, of all blocks that have ended
	err   error  // the end, once it has come
}

// counter counts what was read.
type counter struct {
	*bufio.Reader
	n uint64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += uint64(n)
	return n, err
}

// ReadByte implements io.ByteReader.
func (c *counter) ReadByte() (byte, error) {
	b, err := c.Reader.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

// index is what a stream's blocks were, as its end has to say.
type index struct {
	blocks uint64
	sizes  hash.Hash
}

func (i *index) add(unpadded, content uint64) {
	i.blocks++
	_ = binary.Write(i.sizes, binary.LittleEndian, [2]uint64{unpadded, content})
}

// NewReader reads the head of a file.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{from: &counter{Reader: bufio.NewReader(from)}}
	return r, r.header()
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for r.err == nil && len(p) > 0 {
		if r.block == nil {
			r.err = r.next()
			continue
		}
		n, err := r.block.Read(p)
		if errors.Is(err, io.EOF) {
			err = r.endBlock()
		}
		r.err = err
		if n > 0 {
			return n, nil
		}
	}
	return 0, r.err
}

// whole is for what must not end yet.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// sum reads the checksum of b.
func (r *Reader) sum(b []byte) error {
	var sum [4]byte
	if _, err := io.ReadFull(r.from, sum[:]); err != nil {
		return whole(err)
	}
	if binary.LittleEndian.Uint32(sum[:]) != crc32.ChecksumIEEE(b) {
		return errChecksum
	}
	return nil
}

// header reads a stream's.
func (r *Reader) header() error {
	var b [8]byte
	if _, err := io.ReadFull(r.from, b[:]); err != nil {
		return whole(err)
	}
	if string(b[:6]) != "\xfd7zXZ\x00" || b[6] != 0 {
		return errFormat
	}
	switch b[7] {
	case 0:
		r.check = nil
	case 1:
		r.check = func() hash.Hash { return crc32.NewIEEE() }
	case 4:
		r.check = func() hash.Hash { return crc64.New(crc64.MakeTable(crc64.ECMA)) }
	case 10:
		r.check = sha256.New
	default:
		return fmt.Errorf("check %d of the xz file is not known: %w", b[7], errors.ErrUnsupported)
	}
	r.flags, r.seen = [2]byte(b[6:]), index{sizes: sha256.New()}
	return r.sum(b[6:])
}

// next begins a block, or ends the stream and, where it is the last, the file: io.EOF.
func (r *Reader) next() error {
	size, err := r.from.ReadByte()
	if err != nil {
		return whole(err)
	}
	if size != 0 {
		r.block, err = r.newBlock(size)
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	for { // zeroes may follow, four at a time
		pad, err := r.from.Peek(4)
		if len(pad) == 0 && errors.Is(err, io.EOF) {
			return io.EOF
		}
		if err != nil {
			return whole(err)
		}
		if !bytes.Equal(pad, make([]byte, 4)) {
			return r.header()
		}
		_, _ = r.from.Discard(4)
	}
}

// end reads a stream's index, after its first byte, and its foot.
func (r *Reader) end() error {
	began := r.from.n - 1
	crc := crc32.NewIEEE()
	_, _ = crc.Write([]byte{0})
	from := &summed{r.from, crc}
	blocks, err := number(from)
	if err != nil {
		return err
	}
	told := index{sizes: sha256.New()}
	for range blocks {
		if told.blocks > r.seen.blocks {
			return errFormat
		}
		unpadded, err := number(from)
		if err != nil {
			return err
		}
		content, err := number(from)
		if err != nil {
			return err
		}
		told.add(unpadded, content)
	}
	if told.blocks != r.seen.blocks || !bytes.Equal(told.sizes.Sum(nil), r.seen.sizes.Sum(nil)) {
		return errFormat
	}
	if err := padding(from, r.from.n-began); err != nil {
		return err
	}
	var foot [16]byte // the index's checksum comes first
	if _, err := io.ReadFull(r.from, foot[:]); err != nil {
		return whole(err)
	}
	length := r.from.n - began - 12
	switch {
	case binary.LittleEndian.Uint32(foot[:]) != crc.Sum32(), binary.LittleEndian.Uint32(foot[4:]) != crc32.ChecksumIEEE(foot[8:14]):
		return errChecksum
	case uint64(binary.LittleEndian.Uint32(foot[8:]))*4+4 != length, [2]byte(foot[12:]) != r.flags, string(foot[14:]) != "YZ":
		return errFormat
	}
	return nil
}

// summed adds what is read from it to a checksum.
type summed struct {
	from *counter
	sum  hash.Hash
}

// ReadByte implements io.ByteReader.
func (s *summed) ReadByte() (byte, error) {
	b, err := s.from.ReadByte()
	if err == nil {
		_, _ = s.sum.Write([]byte{b})
	}
	return b, err
}

// padding reads the zeroes after n bytes, which make it a multiple of four.
func padding(from io.ByteReader, n uint64) error {
	for ; n%4 != 0; n++ {
		b, err := from.ReadByte()
		if err != nil {
			return whole(err)
		}
		if b != 0 {
			return errFormat
		}
	}
	return nil
}

// number reads one in the format's own form, which has seven bits a byte.
func number(from io.ByteReader) (uint64, error) {
	var n uint64
	for shift := 0; shift < 63; shift += 7 {
		b, err := from.ReadByte()
		if err != nil {
			return 0, whole(err)
		}
		if b == 0 && shift > 0 {
			break
		}
		if n |= uint64(b&0x7f) << shift; b < 0x80 {
			return n, nil
		}
	}
	return 0, errFormat
}

// block is one that is being read.
type block struct {
	from    *lzma.Reader2
	check   hash.Hash // nil for none
	began   uint64    // where its header is
	data    uint64    // where what is packed begins
	content uint64    // bytes that were unpacked
	packed  *uint64   // as its header says it, nil when it does not
	size    *uint64   // the same, of content
}

// Read implements io.Reader.
func (b *block) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.content += uint64(n)
	if b.check != nil {
		_, _ = b.check.Write(p[:n])
	}
	if b.size != nil && b.content > *b.size {
		return 0, errFormat
	}
	return n, err
}

// newBlock reads a block's header, whose length the first byte has told.
func (r *Reader) newBlock(size byte) (*block, error) {
	b := &block{began: r.from.n - 1}
	head := make([]byte, int(size)*4)
	head[0] = size
	if _, err := io.ReadFull(r.from, head[1:]); err != nil {
		return nil, whole(err)
	}
	if err := r.sum(head); err != nil {
		return nil, err
	}
	flags, in := head[1], bytes.NewReader(head[2:])
	for _, told := range []struct {
		bit byte
		to  **uint64
	}{{0x40, &b.packed}, {0x80, &b.size}} {
		if flags&told.bit == 0 {
			continue
		}
		n, err := number(in)
		if err != nil {
			return nil, err
		}
		*told.to = &n
	}
	dict, err := filter(flags, in)
	if err != nil {
		return nil, err
	}
	if b.size != nil { // nor does it look back at more than there is
		dict = int(max(min(uint64(dict), *b.size), lzma.MinDictCap))
	}
	if r.asked += uint64(dict); r.asked > freeDictionaries+perByte*r.given {
		return nil, errors.New("the blocks of the xz file are too small for the memory that they take")
	}
	b.data = r.from.n
	if r.check != nil {
		b.check = r.check()
	}
	b.from, err = lzma.Reader2Config{DictCap: dict}.NewReader2(r.from)
	return b, err
}

// filter reads how a block is packed, to the end of its header: by LZMA2 alone. It
// returns the size of the dictionary.
func filter(flags byte, in *bytes.Reader) (dict int, err error) {
	if flags&0x3c != 0 {
		return 0, errFormat
	}
	id, err := number(in)
	if err != nil {
		return 0, err
	}
	if flags&3 != 0 || id != 0x21 {
		return 0, fmt.Errorf("filters of the xz file other than LZMA2: %w", errors.ErrUnsupported)
	}
	length, err := number(in)
	if err != nil {
		return 0, err
	}
	bits, err := in.ReadByte()
	if err != nil || length != 1 || bits > 40 {
		return 0, errFormat
	}
	size := uint64(2|bits&1) << (bits/2 + 11)
	if bits == 40 || size > MaxDictionary {
		return 0, fmt.Errorf("the xz file takes more than %d bytes of memory to unpack", MaxDictionary)
	}
	for in.Len() > 0 {
		if b, _ := in.ReadByte(); b != 0 {
			return 0, errFormat
		}
	}
	return int(size), nil
}

// endBlock reads what comes after a block's content.
func (r *Reader) endBlock() error {
	b := r.block
	r.block = nil
	r.given += b.content
	if !b.from.EOS() {
		return io.ErrUnexpectedEOF
	}
	packed := r.from.n - b.data
	if b.packed != nil && *b.packed != packed || b.size != nil && *b.size != b.content {
		return errFormat
	}
	unpadded := r.from.n - b.began
	if err := padding(r.from, unpadded); err != nil {
		return err
	}
	if b.check == nil {
		r.seen.add(unpadded, b.content)
		return nil
	}
	want := b.check.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.from, got); err != nil {
		return whole(err)
	}
	if len(want) < sha256.Size { // a number, whose lowest byte comes first
		slices.Reverse(want)
	}
	if !bytes.Equal(got, want) {
		return errChecksum
	}
	r.seen.add(unpadded+uint64(len(want)), b.content)
	return nil
}
