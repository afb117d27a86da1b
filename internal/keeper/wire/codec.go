// Package wire is the protocol between agent, keeper and nest: frames, their bodies, and their
// versions.
//
// It must not know sockets or processes: it encodes and decodes bytes, and must cope
// with any bytes. Start reading at codec.go, then frame.go, then message.go.
package wire

import "encoding/binary"

// Codec walks the fields of a message, and writes or reads them in the same order. A
// message has one method that names its fields, so that the two directions cannot
// differ.
type Codec struct {
	b       []byte
	reading bool
	bad     bool
}

// Message is a body that a Codec can walk.
type Message interface{ Fields(c *Codec) }

// Marshal appends the body of m to b.
func Marshal(b []byte, m Message) []byte {
	c := Codec{b: b}
	m.Fields(&c)
	return c.b
}

// Unmarshal fills m from b, and reports whether b was a well-formed body. The strings
// and bytes in m point into b.
func Unmarshal(b []byte, m Message) bool {
	c := Codec{b: b, reading: true}
	m.Fields(&c)
	return !c.bad && len(c.b) == 0
}

// Uint walks one unsigned number.
func (c *Codec) Uint(v *uint64) {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	n, k := binary.Uvarint(c.b)
	if k <= 0 {
		c.bad, c.b, *v = true, nil, 0
		return
	}
	*v, c.b = n, c.b[k:]
}

// Int walks one signed number.
func (c *Codec) Int(v *int64) {
	u := uint64(*v<<1) ^ uint64(*v>>63)
	c.Uint(&u)
	*v = int64(u>>1) ^ -int64(u&1)
}

// Bool walks a boolean.
func (c *Codec) Bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	c.Uint(&u)
	if u > 1 {
		c.bad = true
	}
	*v = u == 1
}

// Bytes walks a byte string.
func (c *Codec) Bytes(v *[]byte) {
	n := uint64(len(*v))
	c.Uint(&n)
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	if n > uint64(len(c.b)) {
		c.bad, c.b, *v = true, nil, nil
		return
	}
	*v, c.b = c.b[:n:n], c.b[n:]
	if n == 0 {
		*v = nil
	}
}

// Str walks a string.
func (c *Codec) Str(v *string) {
	var b []byte
	if !c.reading {
		b = []byte(*v)
	}
	c.Bytes(&b)
	if c.reading {
		*v = string(b)
	}
}

// small walks a number that fits the type.
func small[T ~int | ~int32 | ~uint8 | ~uint16 | ~uint32](c *Codec, v *T) {
	n := int64(*v)
	c.Int(&n)
	*v = T(n)
	if int64(*v) != n {
		c.bad = true
	}
}

// List walks a list, one element at a time. An element takes at least one byte, so a
// short body cannot announce a long list.
func List[T any](c *Codec, v *[]T, each func(*T)) {
	n := uint64(len(*v))
	c.Uint(&n)
	if c.reading {
		*v = nil
		if n > uint64(len(c.b)) {
			c.bad, c.b = true, nil
			return
		}
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := range *v {
		if c.bad {
			return
		}
		each(&(*v)[i])
	}
}

func (c *Codec) strs(v *[]string) { List(c, v, c.Str) }

// Levels walks a list of levels.
func (c *Codec) Levels(v *[]Level) { List(c, v, func(l *Level) { l.Fields(c) }) }

// Uints walks a list of unsigned numbers.
func (c *Codec) Uints(v *[]uint64) {
	List(c, v, c.Uint)
}
