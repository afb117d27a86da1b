// Package msgpack reads the MessagePack in which Nomad sends configurations,
// into plain Go values.
//
// The libraries for it decode without a bound on nesting, so that a few megabytes of opening
// brackets overflow the stack, which no recover catches: this one has a bound. It must not know the
// meaning of the values.
package msgpack

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/containerd/errdefs"
)

// maxDepth is how deep values may be nested; Nomad's own schemas are below ten.
const maxDepth = 64

// Decode reads one value, which must be all there is: nil, bool, int64, uint64
// (above int64's range only), float64, string (of bytes too), []any or
// map[string]any. InvalidArgument for anything else.
func Decode(data []byte) (any, error) {
	d := decoder{data}
	v, err := d.value(0)
	if err == nil && len(d.left) > 0 {
		err = malformed("%d bytes after the value", len(d.left))
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("msgpack: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

type decoder struct{ left []byte }

func (d *decoder) take(n uint64) ([]byte, error) {
	if n > uint64(len(d.left)) {
		return nil, malformed("it ends early")
	}
	b := d.left[:n]
	d.left = d.left[n:]
	return b, nil
}

// number reads an unsigned big-endian number of that many bytes.
func (d *decoder) number(size uint64) (uint64, error) {
	b, err := d.take(size)
	if err != nil {
		return 0, err
	}
	var full [8]byte
	copy(full[8-size:], b)
	return binary.BigEndian.Uint64(full[:]), nil
}

// value reads one value. The first byte tells its kind, and small ones are in
// it.
func (d *decoder) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, malformed("nested more than %d deep", maxDepth)
	}
	b, err := d.take(1)
	if err != nil {
		return nil, err
	}
	switch c := b[0]; {
	case c <= 0x7f:
		return int64(c), nil
	case c <= 0x8f:
		return d.table(uint64(c&0x0f), depth)
	case c <= 0x9f:
		return d.list(uint64(c&0x0f), depth)
	case c <= 0xbf:
		return d.text(uint64(c & 0x1f))
	case c >= 0xe0:
		return int64(int8(c)), nil
	default:
		return d.long(c, depth)
	}
}

// long reads a value with its kind in the whole first byte.
func (d *decoder) long(c byte, depth int) (any, error) {
	switch c {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return c == 0xc3, nil
	case 0xc4, 0xc5, 0xc6: // bytes
		return d.sized(1<<(c-0xc4), d.text)
	case 0xd9, 0xda, 0xdb: // strings
		return d.sized(1<<(c-0xd9), d.text)
	case 0xca:
		n, err := d.number(4)
		return float64(math.Float32frombits(uint32(n))), err
	case 0xcb:
		n, err := d.number(8)
		return math.Float64frombits(n), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := d.number(1 << (c - 0xcc))
		if n > math.MaxInt64 {
			return n, err
		}
		return int64(n), err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := uint64(1) << (c - 0xd0)
		n, err := d.number(size)
		shift := 64 - 8*size
		return int64(n<<shift) >> shift, err
	case 0xdc, 0xdd:
		return d.sized(2<<(c-0xdc), func(n uint64) (any, error) { return d.list(n, depth) })
	case 0xde, 0xdf:
		return d.sized(2<<(c-0xde), func(n uint64) (any, error) { return d.table(n, depth) })
	}
	return nil, malformed("a value of kind %#x", c)
}

// sized reads a length of that many bytes, and the value of this length.
func (d *decoder) sized(size uint64, read func(uint64) (any, error)) (any, error) {
	n, err := d.number(size)
	if err != nil {
		return nil, err
	}
	return read(n)
}

func (d *decoder) text(n uint64) (any, error) {
	b, err := d.take(n)
	return string(b), err
}

func (d *decoder) list(n uint64, depth int) (any, error) {
	if n > uint64(len(d.left)) { // each takes a byte at least
		return nil, malformed("it ends early")
	}
	list := make([]any, 0, min(n, 1024))
	for range n {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (d *decoder) table(n uint64, depth int) (any, error) {
	if n > uint64(len(d.left)) {
		return nil, malformed("it ends early")
	}
	table := make(map[string]any, min(n, 1024))
	for range n {
		k, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, malformed("a key that is no string")
		}
		if _, twice := table[key]; twice {
			return nil, malformed("key %q is there twice", key)
		}
		if table[key], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return table, nil
}
