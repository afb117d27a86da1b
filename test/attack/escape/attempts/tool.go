//go:build amd64

package main

import "encoding/binary"

// tool is a static program in ELF's form with nothing but the given instructions.
func tool(machine uint16, code []byte) []byte {
	const header, program, base = 64, 56, 0x400000
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2) // executable
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header+program)
	b = le.AppendUint64(b, header)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{header, program, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // loaded
	b = le.AppendUint32(b, 5) // to be read and executed
	for _, v := range []uint64{0, base, base, uint64(header + program + len(code)), uint64(header + program + len(code)), 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
