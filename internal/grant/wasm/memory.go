package wasm

import (
	"context"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// withMemory makes modules that are instantiated with the returned context use memory outside of Go's heap. In the heap, wazero copies the
// memory each time it grows, and the copies count against the container's limit until the next garbage collection.
func withMemory(ctx context.Context) context.Context {
	return experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(reserve))
}

// memory is a module's linear memory. It implements experimental.LinearMemory.
type memory struct {
	reserved []byte // without access above the memory's size
	heap     []byte // used in place of reserved where no addresses are left
}

// reserve reserves addresses for the largest size of a memory. The kernel provides a page when it is first used.
func reserve(_, most uint64) experimental.LinearMemory {
	m := &memory{}
	if most > 0 && most == uint64(int(most)) {
		m.reserved, _ = unix.Mmap(-1, 0, int(most), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	}
	return m
}

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	if m.reserved == nil {
		m.heap = append(m.heap, make([]byte, size-uint64(len(m.heap)))...)
		return m.heap
	}
	if size == 0 {
		return m.reserved[:0:0]
	}
	if err := unix.Mprotect(m.reserved[:size], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil
	}
	return m.reserved[:size:size]
}

// Free implements experimental.LinearMemory.
func (m *memory) Free() {
	if m.reserved != nil {
		_ = unix.Munmap(m.reserved)
	}
	m.reserved, m.heap = nil, nil
}
