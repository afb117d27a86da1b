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

// FixOld is Fix for a blob of an earlier version.
func FixOld(blob []byte) {
	for version, of := range map[byte]func([]byte) uint64{1: sum1, 2: sum} {
		if len(blob) >= headerSize2 && blob[len(magic)-1] == version {
			binary.LittleEndian.PutUint64(blob[sumAt(version):], of(blob))
		}
	}
}
