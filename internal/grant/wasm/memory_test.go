package wasm

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"github.com/tetratelabs/wazero/experimental"
)

// growing returns a module that grows its memory by 1 MiB until it has so many MiB, and writes to each page. It traps if it cannot grow.
func growing(mib int) []byte {
	const pages = 16 // of 64 KiB, in a MiB
	var code []byte
	emit := func(b ...byte) { code = append(code, b...) }
	number := func(n int) { code = append(append(code, 0x41), leb(int64(n))...) }
	emit(0x03, 0x40) // loop
	number(pages)
	emit(0x40, 0) // memory.grow
	number(-1)
	emit(0x46, 0x04, 0x40, 0x00, 0x0b) // if it is -1: unreachable
	emit(0x03, 0x40)                   // loop: write to the page at the variable, and add 4096 to it
	emit(0x20, 0)
	number(1)
	emit(0x36, 2, 0)
	emit(0x20, 0)
	number(4096)
	emit(0x6a, 0x22, 0)
	emit(0x3f, 0) // memory.size
	number(16)
	emit(0x74, 0x49, 0x0d, 0, 0x0b) // shift it to bytes; repeat while the variable is less
	emit(0x3f, 0)
	number(mib * pages)
	emit(0x49, 0x0d, 0, 0x0b, 0x0b) // repeat while there are fewer pages
	body := append([]byte{1, 1, 0x7f}, code...)
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, wasmSection(1, vec([]byte{0x60, 0, 0}))...)
	out = append(out, wasmSection(3, vec(uleb(0)))...)
	out = append(out, wasmSection(5, vec([]byte{0, 1}))...)
	out = append(out, wasmSection(7, vec(append(name("_start"), 0, 0), append(name("memory"), 2, 0)))...)
	return append(out, wasmSection(10, vec(append(uleb(len(body)), body...)))...)
}

// TestAProgramTakesTheMemoryThatItUses: memory from before it grew takes none, or a container's
// limit would kill a program that uses a third of it.
func TestAProgramTakesTheMemoryThatItUses(t *testing.T) {
	const mib = 400
	w := newWorker(t, growing(mib))
	cmd := w.start()
	if status, _ := w.end(cmd); status != 0 {
		t.Fatalf("it ended with %d: %s", status, w.messages.String())
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatal("no usage")
	}
	peak := usage.Maxrss >> 10
	t.Logf("a program with %d MiB took %d MiB", mib, peak)
	if peak < mib || peak > mib+100 {
		t.Errorf("a program with %d MiB took %d MiB", mib, peak)
	}
}

// TestAMemoryKeepsItsContentAndItsAddress: in the heap, where no addresses are left, only the content.
func TestAMemoryKeepsItsContentAndItsAddress(t *testing.T) {
	for name, m := range map[string]experimental.LinearMemory{"reserved": reserve(0, 1<<32), "without addresses": reserve(0, 1<<62), "empty": reserve(0, 0)} {
		if b := m.Reallocate(0); len(b) != 0 {
			t.Errorf("%s: %d bytes", name, len(b))
		}
		first := m.Reallocate(1 << 16)
		binary.LittleEndian.PutUint32(first[1<<15:], 7)
		second := m.Reallocate(1 << 20)
		if len(second) != 1<<20 || binary.LittleEndian.Uint32(second[1<<15:]) != 7 || slices.Max(second[1<<16:]) != 0 {
			t.Errorf("%s: %d bytes, or not those from before", name, len(second))
		}
		if name == "reserved" && &first[0] != &second[0] {
			t.Error("it has moved")
		}
		m.Free()
		m.Free()
	}
}
