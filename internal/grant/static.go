package grant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrStatic is the error for a program that needs files beside its own.
var ErrStatic = errors.New("it is not a static program: it names a loader, and there is none in its root; build it without dynamic linking (Go: CGO_ENABLED=0, C: -static, Rust: the musl target or -C target-feature=+crt-static)")

// Numbers of the ELF format.
const (
	elfHeader64, elfHeader32   = 64, 52
	elfProgram64, elfProgram32 = 56, 32
	elfExecutable, elfShared   = 2, 3 // a static program can be of either type
	elfInterpreter             = 3
	maxProgramHeaders          = 64 << 10 / elfProgram64 // as many as the kernel reads
)

// CheckStatic refuses programs that the kernel cannot execute without further files. It reads the header and the table
// of segments of an ELF file, a few kilobytes, and nothing of their content.
func CheckStatic(r io.ReaderAt) error {
	head := make([]byte, elfHeader64)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n < elfHeader32 || string(head[:4]) != "\x7fELF" {
		return errors.New("it is not a program but a script, or of another format than ELF")
	}
	var order binary.ByteOrder
	switch head[5] {
	case 1:
		order = binary.LittleEndian
	case 2:
		order = binary.BigEndian
	default:
		return errors.New("its ELF header is damaged: no byte order")
	}
	var table uint64
	var each, count, size int
	switch {
	case head[4] == 2 && n == elfHeader64:
		table, each, count, size = order.Uint64(head[32:]), int(order.Uint16(head[54:])), int(order.Uint16(head[56:])), elfProgram64
	case head[4] == 1:
		table, each, count, size = uint64(order.Uint32(head[28:])), int(order.Uint16(head[42:])), int(order.Uint16(head[44:])), elfProgram32
	default:
		return errors.New("its ELF header is damaged: neither 32 nor 64 bits")
	}
	switch kind := order.Uint16(head[16:]); {
	case kind != elfExecutable && kind != elfShared:
		return fmt.Errorf("it is an ELF file of type %d, not a program", kind)
	case each != size || count == 0 || count > maxProgramHeaders || table > 1<<62:
		return fmt.Errorf("its ELF header is damaged: %d segments of %d bytes at %d", count, each, table)
	}
	segments := make([]byte, count*size)
	if _, err := r.ReadAt(segments, int64(table)); err != nil {
		return fmt.Errorf("its ELF header is damaged: %d segments at %d: %w", count, table, err)
	}
	for i := 0; i < len(segments); i += size {
		if order.Uint32(segments[i:]) == elfInterpreter {
			return ErrStatic
		}
	}
	return nil
}
