package dbfile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/longshore/longshore/internal/atomicfile"
)

// A copy's file is a sequence of frames:
//
//	magic "LScp", length u32, CRC32C u32 of the body (little endian), body
//
// The first byte of a body is its kind. It begins with frameBegin (format, transaction), then come
// frameOps with all that was in the database after that transaction, then frameEnd, then one
// frameOps for each later transaction. The operations of a frame are listed at op*.
const (
	copySuffix  = ".copy"
	copyFormat  = 1
	frameMagic  = "LScp"
	frameHead   = len(frameMagic) + 8
	maxFrame    = 64 << 20
	maxCopy     = 2 << 30
	frameBegin  = 'b'
	frameOps    = 'o'
	frameEnd    = 'e'
	opPut       = 'p'     // bucket, key, value
	opDelete    = 'd'     // bucket, key
	opSequence  = 's'     // bucket, number
	snapshotOps = 2 << 10 // of a frame: the loss by one damaged place of the copy
)

// slot is where a value is.
type slot struct{ bucket, key string }

// content is the content of a database, without the buckets that are not copied.
type content struct {
	values    map[slot][]byte
	sequences map[string]uint64
}

func newContent() content {
	return content{values: map[slot][]byte{}, sequences: map[string]uint64{}}
}

// differs returns the first difference between two contents; "" if there is none.
func (c content) differs(other content) string {
	for s, v := range c.values {
		if w, ok := other.values[s]; !ok || !bytes.Equal(v, w) {
			return fmt.Sprintf("%q of %q", s.key, names(s.bucket))
		}
	}
	for s := range other.values {
		if _, ok := c.values[s]; !ok {
			return fmt.Sprintf("%q of %q", s.key, names(s.bucket))
		}
	}
	if !maps.Equal(c.sequences, other.sequences) {
		return "a bucket's sequence"
	}
	return ""
}

// ops are encoded operations, in their order.
type ops struct{ buf []byte }

func (o *ops) text(s string) {
	o.buf = binary.AppendUvarint(o.buf, uint64(len(s)))
	o.buf = append(o.buf, s...)
}

func (o *ops) put(bucket, key string, value []byte) {
	o.buf = append(o.buf, opPut)
	o.text(bucket)
	o.text(key)
	o.buf = binary.AppendUvarint(o.buf, uint64(len(value)))
	o.buf = append(o.buf, value...)
}

func (o *ops) remove(bucket, key string) {
	o.buf = append(o.buf, opDelete)
	o.text(bucket)
	o.text(key)
}

func (o *ops) sequence(bucket string, n uint64) {
	o.buf = append(o.buf, opSequence)
	o.text(bucket)
	o.buf = binary.AppendUvarint(o.buf, n)
}

var errShort = errors.New("an operation is cut off")

// apply makes the encoded operations in c. Values point into b.
func (c content) apply(b []byte) error {
	number := func() (n uint64, err error) {
		n, k := binary.Uvarint(b)
		if k <= 0 {
			return 0, errShort
		}
		b = b[k:]
		return n, nil
	}
	text := func() ([]byte, error) {
		n, err := number()
		if err != nil || n > uint64(len(b)) {
			return nil, errShort
		}
		s := b[:n:n]
		b = b[n:]
		return s, nil
	}
	for len(b) > 0 {
		op := b[0]
		b = b[1:]
		bucket, err := text()
		if err != nil {
			return err
		}
		if op == opSequence {
			n, err := number()
			if err != nil {
				return err
			}
			c.sequences[string(bucket)] = n
			continue
		}
		key, err := text()
		if err != nil {
			return err
		}
		s := slot{string(bucket), string(key)}
		switch op {
		case opDelete:
			delete(c.values, s)
		case opPut:
			value, err := text()
			if err != nil {
				return err
			}
			c.values[s] = value
		default:
			return fmt.Errorf("unknown operation %q", op)
		}
	}
	return nil
}

func appendFrame(b []byte, kind byte, body []byte) []byte {
	at := len(b)
	b = append(append(append(b, make([]byte, frameHead)...), kind), body...)
	sealFrame(b[at:])
	return b
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // the package caches it

// copied is the content of a copy's file.
type copied struct {
	content
	txid  uint64 // of the last transaction in it
	whole bool   // it is complete, from its first frame to its last
	some  bool   // it has something at all
	size  int64  // of the file
	end   int64  // of the part that was written as a whole
	large bool   // a damaged place in it can cost many entries
	// before are the values that were read when the last damaged place was found, and fresh says
	// that others were read since.
	before map[slot][]byte
	fresh  bool
}

// readCopy reads a copy. A damaged one is no error: its readable part is returned.
func readCopy(path string) (copied, error) {
	c := copied{content: newContent()}
	b, err := atomicfile.Read(path, maxCopy)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case errors.Is(err, atomicfile.ErrUnreadable):
		c.some = true // its content is unknown
		return c, nil
	case err != nil:
		return c, err
	}
	c.parse(b)
	return c, nil
}

func (c *copied) parse(b []byte) {
	began, ended, sound := false, false, true
	c.size = int64(len(b))
	for len(b) > 0 {
		kind, body, size := nextFrame(b)
		if size == 0 {
			// Search for the next frame behind the damage.
			sound = false
			c.doubt()
			at := bytes.Index(b[1:], []byte(frameMagic))
			if at < 0 {
				break
			}
			b = b[1+at:]
			continue
		}
		b = b[size:]
		c.large = c.large || size > largeFrame
		switch kind {
		case frameBegin:
			format, k := binary.Uvarint(body)
			txid, n := binary.Uvarint(body[max(k, 0):])
			began = k > 0 && n > 0 && format == copyFormat
			sound = sound && began
			c.txid = max(c.txid, txid)
		case frameEnd:
			ended, c.end = true, c.size-int64(len(b))
		case frameOps:
			txid, n := binary.Uvarint(body)
			if n <= 0 || c.apply(body[n:]) != nil {
				sound = false
				c.doubt()
				continue
			}
			c.some, c.fresh, c.txid = true, true, max(c.txid, txid)
		default:
			sound = false
		}
	}
	c.whole = began && ended && sound
}

// doubt remembers all values as those of before a damaged place.
func (c *copied) doubt() {
	if c.fresh {
		c.fresh, c.before = false, maps.Clone(c.values)
	}
}

// doubtful reports whether a damaged place behind a value may have changed or deleted it.
func (c *copied) doubtful(s slot) bool {
	old, ok := c.before[s]
	now := c.values[s]
	// Values point into the copy, so one that was put again is at another place.
	return ok && (len(now) == 0 || len(old) > 0 && &old[0] == &now[0])
}

// nextFrame returns the frame at the beginning of b; size is 0 when there is none that is whole.
func nextFrame(b []byte) (kind byte, body []byte, size int) {
	if len(b) < frameHead || string(b[:len(frameMagic)]) != frameMagic {
		return 0, nil, 0
	}
	length := int64(binary.LittleEndian.Uint32(b[len(frameMagic):]))
	if length < 1 || length > maxFrame || length > int64(len(b)-frameHead) {
		return 0, nil, 0
	}
	body = b[frameHead : frameHead+int(length)]
	if crc32.Checksum(body, castagnoli()) != binary.LittleEndian.Uint32(b[len(frameMagic)+4:]) {
		return 0, nil, 0
	}
	return body[0], body[1:], frameHead + int(length)
}

// copyFile is a copy that is written.
type copyFile struct {
	path     string
	f        *os.File // nil when the copy must be rewritten
	snapshot int64    // the size after it was written as a whole
	size     int64
}

// minRewrite is the least growth of a copy before it is rewritten.
const minRewrite = 1 << 20

// largeFrame is the size of a transaction's frame that the next start divides.
const largeFrame = 32 << 10

// full reports whether the copy has so much outdated content that it should be rewritten.
func (c *copyFile) full() bool { return c.size-c.snapshot > max(minRewrite, c.snapshot) }

// resume continues a copy that has the content of the file. It reports whether it could.
func (c *copyFile) resume(old *copied) bool {
	n := copyFile{path: c.path, snapshot: old.end, size: old.size}
	if n.full() || old.large {
		return false
	}
	f, err := os.OpenFile(c.path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() != old.size {
		_ = f.Close()
		return false
	}
	n.f = f
	*c = n
	return true
}

// append adds a transaction; b is its frame without the head.
func (c *copyFile) append(b []byte) error {
	sealFrame(b)
	if _, err := c.f.WriteAt(b, c.size); err != nil {
		return err
	}
	c.size += int64(len(b))
	return nil
}

// newFrame begins the frame of a transaction in the space of buf: room for its head, its kind and
// the transaction's number.
func newFrame(buf []byte, txid uint64) ops {
	b := append(slices.Grow(buf[:0], 512), make([]byte, frameHead)...)
	return ops{binary.AppendUvarint(append(b, frameOps), txid)}
}

// sealFrame writes the head of a frame with a complete body.
func sealFrame(b []byte) {
	copy(b, frameMagic)
	binary.LittleEndian.PutUint32(b[len(frameMagic):], uint32(len(b)-frameHead))
	binary.LittleEndian.PutUint32(b[len(frameMagic)+4:], crc32.Checksum(b[frameHead:], castagnoli()))
}

// write rewrites the copy.
func (c *copyFile) write(all content, txid uint64) (err error) {
	c.close()
	for _, path := range []string{c.path, c.path + newSuffix} {
		if atomicfile.Strange(path) != "" { // it cannot be replaced by a file
			if err := atomicfile.SetAside(path); err != nil {
				return err
			}
		}
	}
	f, err := os.OpenFile(c.path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	size, out := int64(0), bufio.NewWriterSize(f, 64<<10)
	frame := func(kind byte, body []byte) error {
		n, err := out.Write(appendFrame(nil, kind, body))
		size += int64(n)
		return err
	}
	head := binary.AppendUvarint(nil, txid)
	if err := frame(frameBegin, append(binary.AppendUvarint(nil, copyFormat), head...)); err != nil {
		return err
	}
	o := ops{slices.Clone(head)}
	for bucket, n := range all.sequences {
		o.sequence(bucket, n)
	}
	for s, v := range all.values {
		o.put(s.bucket, s.key, v)
		if len(o.buf) < snapshotOps {
			continue
		}
		if err := frame(frameOps, o.buf); err != nil {
			return err
		}
		o.buf = append(o.buf[:0], head...)
	}
	if err := frame(frameOps, o.buf); err != nil {
		return err
	}
	if err := errors.Join(frame(frameEnd, nil), out.Flush()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), c.path); err != nil {
		return err
	}
	c.f, c.snapshot, c.size = f, size, size
	return nil
}

func (c *copyFile) close() {
	if c.f != nil {
		_ = c.f.Close() // write has returned errors of writing
		c.f = nil
	}
}
