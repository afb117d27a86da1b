package driver

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"time"
)

// The first bytes of MessagePack's forms of values that fluentd's protocol needs.
const (
	fixMap, fixArray, fixStr                      = 0x80, 0x90, 0xa0
	nilByte, falseByte, trueByte                  = 0xc0, 0xc2, 0xc3
	bin8, bin16, bin32                            = 0xc4, 0xc5, 0xc6
	uint8Byte, uint16Byte, uint32Byte, uint64Byte = 0xcc, 0xcd, 0xce, 0xcf
	int8Byte, int16Byte, int32Byte, int64Byte     = 0xd0, 0xd1, 0xd2, 0xd3
	fixExt8                                       = 0xd7
	str8, str16, str32                            = 0xd9, 0xda, 0xdb
	array16, array32                              = 0xdc, 0xdd
	map16, map32                                  = 0xde, 0xdf
)

// eventTime is the type of the extension for times with nanoseconds in fluentd's protocol.
const eventTime = 0

func appendStr[T string | []byte](b []byte, s T) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, fixStr|byte(n))
	case n <= math.MaxUint8:
		b = append(b, str8, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, str16), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, str32), uint32(n))
	}
	return append(b, s...)
}

func appendArray(b []byte, n int) []byte {
	if n < 16 {
		return append(b, fixArray|byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, array32), uint32(n))
}

func appendMap(b []byte, n int) []byte {
	if n < 16 {
		return append(b, fixMap|byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, map32), uint32(n))
}

func appendUint(b []byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, uint64Byte), n)
}

// appendTime appends a time, with its nanoseconds or in seconds.
func appendTime(b []byte, t time.Time, nano bool) []byte {
	if !nano {
		return binary.BigEndian.AppendUint64(append(b, int64Byte), uint64(t.Unix()))
	}
	b = binary.BigEndian.AppendUint32(append(b, fixExt8, eventTime), uint32(t.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

// appendPairs appends the pairs of a map, in the order of their keys.
func appendPairs(b []byte, m map[string]string) []byte {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = appendStr(appendStr(b, k), m[k])
	}
	return b
}

var (
	errShort = errors.New("the value is not complete")
	errForm  = errors.New("the answer of the service is no map of texts")
)

// maxAck bounds the answer of a service, in bytes.
const maxAck = 4 << 10

// decodeAck reads the answer of a service, a map of texts, and returns its value of "ack" and the rest of b. errShort means that more
// bytes must be read.
func decodeAck(b []byte) (ack string, rest []byte, err error) {
	n, rest, err := mapSize(b)
	for ; n > 0 && err == nil; n-- {
		var key, value []byte
		if key, rest, err = text(rest); err != nil {
			break
		}
		if value, rest, err = text(rest); err == nil && string(key) == "ack" {
			ack = string(value)
		}
	}
	if errors.Is(err, errShort) && len(b) >= maxAck {
		err = errForm
	}
	return ack, rest, err
}

func mapSize(b []byte) (n int, rest []byte, err error) {
	switch {
	case len(b) == 0:
		return 0, nil, errShort
	case b[0]&0xf0 == fixMap:
		return int(b[0] & 0x0f), b[1:], nil
	case b[0] != map16:
		return 0, nil, errForm
	case len(b) < 3:
		return 0, nil, errShort
	}
	return int(binary.BigEndian.Uint16(b[1:])), b[3:], nil
}

// text reads a str or a bin.
func text(b []byte) (value, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errShort
	}
	size, n := 0, 0 // of the length, and the length
	switch c := b[0]; {
	case c&0xe0 == fixStr:
		n = int(c & 0x1f)
	case c == str8 || c == bin8:
		size = 1
	case c == str16 || c == bin16:
		size = 2
	default:
		return nil, nil, errForm
	}
	if len(b) < 1+size {
		return nil, nil, errShort
	}
	for _, c := range b[1 : 1+size] {
		n = n<<8 | int(c)
	}
	b = b[1+size:]
	if len(b) < n {
		return nil, nil, errShort
	}
	return b[:n], b[n:], nil
}
