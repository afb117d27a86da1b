package dbfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
)

// The layout of a bbolt file. Numbers are in the byte order of the machine that wrote it, which
// is this one.
const (
	pageHeader   = 16 // id u64, flags u16, count u16, overflow u32
	elementSize  = 16 // leaf: flags, pos, ksize, vsize u32; branch: pos, ksize u32, page u64
	bucketHeader = 16 // root page u64, sequence u64

	metaSum   = 56 // the checksum's offset in a meta page, after its header; FNV-1a of the bytes before it
	metaSize  = metaSum + 8
	metaMagic = 0xED0CDAED

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf's element

	noFreelist  = ^uint64(0)
	manyInPage  = 0xFFFF // a freelist with this count has the real one as its first number
	maxDepth    = 64
	minPageSize = 1 << 10
	maxPageSize = 1 << 16
)

// tree reads a bbolt file without mapping it, so that no page, however damaged, can crash the
// process.
type tree struct {
	f        io.ReaderAt
	size     int64
	pageSize int64
	meta     meta
	seen     map[uint64]bool // pages that the walk has met
	// visit gets each entry; entry.value is nil if the call reports a bucket's sequence.
	visit func(bucket string, key, value []byte) error
	// sequence gets the sequence of each bucket that has one.
	sequence func(bucket string, n uint64)
	// fault gets each damaged place; the walk ends with the error that it returns.
	fault func(error) error
}

type meta struct{ root, sequence, freelist, high, txid uint64 }

func u16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func u32(b []byte) int64  { return int64(binary.NativeEndian.Uint32(b)) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

// openTree finds the newer of the file's two meta pages that is whole.
func openTree(f io.ReaderAt, size int64) (*tree, error) {
	t := &tree{f: f, size: size, seen: map[uint64]bool{}}
	if size == 0 {
		return nil, errors.New("the file is empty")
	}
	found := false
	take := func(at int64) {
		m, pageSize, ok := readMeta(f, at)
		// The second meta page is at the offset of one page.
		if !ok || (at != 0 && at != pageSize) || (found && m.txid <= t.meta.txid) {
			return
		}
		found, t.meta, t.pageSize = true, m, pageSize
	}
	take(0)
	for at := int64(minPageSize); at <= maxPageSize; at *= 2 {
		take(at)
	}
	if !found {
		return nil, errors.New("neither of its two first pages is whole")
	}
	if size < 2*t.pageSize {
		return nil, fmt.Errorf("the file is cut off after %d bytes", size)
	}
	return t, nil
}

func readMeta(f io.ReaderAt, at int64) (m meta, pageSize int64, ok bool) {
	var page [pageHeader + metaSize]byte
	if _, err := f.ReadAt(page[:], at); err != nil {
		return m, 0, false
	}
	b := page[pageHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSum])
	pageSize = u32(b[8:])
	if u32(b) != metaMagic || u32(b[4:]) != 2 || u64(b[metaSum:]) != sum.Sum64() || pageSize < minPageSize || pageSize > maxPageSize || pageSize&(pageSize-1) != 0 {
		return m, 0, false
	}
	return meta{root: u64(b[16:]), sequence: u64(b[24:]), freelist: u64(b[32:]), high: u64(b[40:]), txid: u64(b[48:])}, pageSize, true
}

// walk visits every entry that can be read.
func (t *tree) walk() error {
	if err := t.page("", t.meta.root, nil, nil, 0); err != nil {
		return err
	}
	if t.meta.freelist == noFreelist {
		return nil
	}
	return t.report(t.freelist())
}

func (t *tree) report(err error) error {
	if err == nil || t.fault == nil {
		return err
	}
	return t.fault(err)
}

// read returns a page with those that it overflows into, and marks them as seen.
func (t *tree) read(id uint64) ([]byte, error) {
	if id < 2 || id >= t.meta.high || int64(id) >= t.size/t.pageSize {
		return nil, fmt.Errorf("page %d is not in the file, which ends after page %d", id, t.size/t.pageSize-1)
	}
	var head [pageHeader]byte
	if _, err := t.f.ReadAt(head[:], int64(id)*t.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	more := uint64(u32(head[12:]))
	if u64(head[:]) != id || id+more >= t.meta.high || int64(id+more) >= t.size/t.pageSize {
		return nil, fmt.Errorf("page %d has the head of page %d with %d more", id, u64(head[:]), more)
	}
	for i := id; i <= id+more; i++ {
		if t.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		t.seen[i] = true
	}
	b := make([]byte, int64(more+1)*t.pageSize)
	if _, err := t.f.ReadAt(b, int64(id)*t.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// page walks a page of a bucket and the pages below it. Its keys must be from low on and before
// high, where those are not nil.
func (t *tree) page(bucket string, id uint64, low, high []byte, depth int) error {
	b, err := t.read(id)
	if err == nil && depth > maxDepth {
		err = fmt.Errorf("page %d is %d pages deep", id, depth)
	}
	if err != nil {
		return t.report(err)
	}
	return t.elements(bucket, fmt.Sprintf("page %d", id), b, low, high, depth)
}

func (t *tree) elements(bucket, where string, b, low, high []byte, depth int) error {
	flags, count := u16(b[8:]), int64(u16(b[10:]))
	if flags != flagLeaf && flags != flagBranch || (flags == flagBranch && count == 0) || pageHeader+count*elementSize > int64(len(b)) {
		return t.report(fmt.Errorf("%s has the flags %#x and %d elements", where, flags, count))
	}
	var keys [][]byte
	for i := range count {
		at := pageHeader + i*elementSize
		e := b[at:]
		pos, ksize := u32(e), u32(e[4:])
		if flags == flagLeaf {
			pos, ksize = u32(e[4:]), u32(e[8:])
		}
		if ksize == 0 || at+pos < pageHeader+count*elementSize || at+pos+ksize > int64(len(b)) {
			return t.report(fmt.Errorf("%s: the key of element %d is not in it", where, i))
		}
		key := b[at+pos : at+pos+ksize]
		if i > 0 && bytes.Compare(keys[i-1], key) >= 0 || low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
			return t.report(fmt.Errorf("%s: the key of element %d is out of order", where, i))
		}
		keys = append(keys, key)
	}
	for i := range count {
		at := pageHeader + i*elementSize
		var err error
		if flags == flagLeaf {
			err = t.leaf(bucket, fmt.Sprintf("%s: element %d", where, i), b[at:], keys[i], depth)
		} else {
			next := high
			if i+1 < count {
				next = keys[i+1]
			}
			err = t.page(bucket, u64(b[at+8:]), keys[i], next, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaf visits an element of a leaf: an entry, or a bucket with all that is in it. e begins at the
// element and ends with its page.
func (t *tree) leaf(bucket, where string, e, key []byte, depth int) error {
	flags, from, vsize := u32(e), u32(e[4:])+u32(e[8:]), u32(e[12:])
	if flags&^flagBucket != 0 || from+vsize > int64(len(e)) {
		return t.report(fmt.Errorf("%s: its value is not in the page", where))
	}
	value := e[from : from+vsize]
	if flags == 0 {
		return t.visit(bucket, key, value)
	}
	if len(value) < bucketHeader {
		return t.report(fmt.Errorf("%s: a bucket of %d bytes", where, len(value)))
	}
	name := below(bucket, string(key))
	if n := u64(value[8:]); n > 0 && t.sequence != nil {
		t.sequence(name, n)
	}
	if root := u64(value); root != 0 {
		return t.page(name, root, nil, nil, depth+1)
	}
	inside := value[bucketHeader:]
	if len(inside) < pageHeader || u16(inside[8:]) != flagLeaf {
		return t.report(fmt.Errorf("%s: a bucket without a page", where))
	}
	return t.elements(name, where, inside, nil, nil, depth+1)
}

// freelist checks the pages that the file says are free.
func (t *tree) freelist() error {
	b, err := t.read(t.meta.freelist)
	if err != nil {
		return err
	}
	ids, count := b[pageHeader:], uint64(u16(b[10:]))
	if count == manyInPage {
		count, ids = u64(ids), ids[8:]
	}
	if u16(b[8:]) != flagFreelist || count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is not a list of free pages", t.meta.freelist)
	}
	for i := range count {
		id := u64(ids[8*i:])
		if id < 2 || id >= t.meta.high || t.seen[id] {
			return fmt.Errorf("page %d is listed as free, and is not", id)
		}
		t.seen[id] = true
	}
	return nil
}

// separator is between the names of nested buckets.
const separator = "\x00"

func below(bucket, name string) string {
	if bucket == "" {
		return name
	}
	return bucket + separator + name
}

func names(bucket string) []string { return strings.Split(bucket, separator) }

// readTree reads all entries of the file at path. Without fault the first damaged place is an
// error; otherwise fault is called with each of them, and the readable rest is returned.
func readTree(path string, skip func(bucket string) bool, fault func(error)) (c content, txid uint64, err error) {
	c = newContent()
	f, err := os.Open(path)
	if err != nil {
		return c, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return c, 0, err
	}
	t, err := openTree(f, st.Size())
	if err != nil {
		return c, 0, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	t.visit = func(bucket string, key, value []byte) error {
		if bucket != "" && !skip(names(bucket)[0]) {
			c.values[slot{bucket, string(key)}] = value // nobody else uses the buffer of its page
		}
		return nil
	}
	t.sequence = func(bucket string, n uint64) {
		if !skip(names(bucket)[0]) {
			c.sequences[bucket] = n
		}
	}
	if fault != nil {
		t.fault = func(err error) error {
			fault(err)
			return nil
		}
	}
	if err := t.walk(); err != nil {
		return c, 0, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	return c, t.meta.txid, nil
}
