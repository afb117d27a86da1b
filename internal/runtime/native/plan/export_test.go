package plan

import (
	"encoding/binary"
	"unsafe"
)

// Fix makes the sum of a blob fit, so that a fuzzer gets past it.
func Fix(blob []byte) {
	if len(blob) >= int(headerSize) {
		(*Header)(unsafe.Pointer(&blob[0])).Sum = sum(blob)
	}
}

// Fix1 is Fix for a blob of version 1.
func Fix1(blob []byte) {
	if len(blob) >= int(headerSize)-usersSize {
		binary.LittleEndian.PutUint64(blob[usersAt:], sum1(blob))
	}
}
