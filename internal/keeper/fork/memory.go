package fork

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// span is a range of addresses.
type span struct{ from, to uintptr }

// maxKept is how many ranges of memory a child keeps at most.
const maxKept = 4

// task is at the start of a child's new stack mapping. It holds no pointers, because the compiler's
// write barriers would use memory that the child no longer has.
type task struct {
	kind uintptr
	kept [maxKept]span // in the order of their addresses; empty ones last

	// For a child that runs a plan.
	ops, numOps, header, progress uintptr

	// For a launcher.
	socket uintptr
}

// The purpose of a child.
const (
	runsPlan = iota
	launches
)

// regionSize is the room for a child's task, further data of its parent, and its
// stack.
const regionSize = 64 << 10

// region is the mapping that holds a child's task and stack.
type region struct {
	mem  []byte
	used uintptr
}

func newRegion() (*region, error) {
	mem, err := unix.Mmap(-1, 0, regionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &region{mem: mem, used: unsafe.Sizeof(task{})}, nil
}

// free unmaps the region. A child has a copy of its own.
func (r *region) free() { _ = unix.Munmap(r.mem) }

func (r *region) task() *task { return (*task)(unsafe.Pointer(&r.mem[0])) }

func (r *region) span() span {
	from := uintptr(unsafe.Pointer(&r.mem[0]))
	return span{from, from + regionSize}
}

// room reserves n bytes beside the task, aligned to eight. They must be few compared
// with the stack.
func (r *region) room(n uintptr) unsafe.Pointer {
	p := unsafe.Pointer(&r.mem[r.used])
	r.used += (n + 7) &^ 7
	return p
}

// start clones a child that has only its task. keep are the ranges of memory that it
// keeps beside region and program; empty ones do not count.
func (r *region) start(ca *cloneArgs, keep ...span) (pid uintptr, errno syscall.Errno) {
	program, err := ownProgram()
	if err != nil {
		return 0, syscall.ENOEXEC
	}
	all := append([]span{program, r.span()}, keep...)
	all = slices.DeleteFunc(all, func(s span) bool { return s.to == 0 })
	for i := range all { // a handful: slices.SortFunc takes 9 KB of each program
		for j := i; j > 0 && all[j].from < all[j-1].from; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	t := r.task()
	copy(t.kept[:], all)
	ca.stack, ca.stackSize = uint64(r.span().from), regionSize
	ca.flags |= unix.CLONE_CLEAR_SIGHAND
	syscall.ForkLock.Lock()
	runtimeBeforeFork()
	pid, e := spawn(ca, unsafe.Sizeof(*ca), t)
	runtimeAfterFork()
	syscall.ForkLock.Unlock()
	return pid, syscall.Errno(e)
}

// spawn is clone3 for a child that calls child on a stack of its own.
//
//go:noescape
func spawn(ca *cloneArgs, size uintptr, t *task) (pid, errno uintptr)

// spawn calls child in assembly, which linters do not see.
var _ = child

// pages returns the pages that hold the n bytes at b.
func pages(b unsafe.Pointer, n uintptr) span {
	size := uintptr(os.Getpagesize())
	from := uintptr(b) &^ (size - 1)
	return span{from, (uintptr(b) + n + size - 1) &^ (size - 1)}
}

// ownProgram returns the addresses of this program's instructions and constants, which
// a child needs: the parts of the file that are mapped and not writable.
var ownProgram = sync.OnceValues(func() (span, error) {
	aux, err := unix.Auxv()
	if err != nil {
		return span{}, err
	}
	var headers, size, n uintptr
	for _, kv := range aux {
		switch kv[0] {
		case auxHeaders:
			headers = kv[1]
		case auxHeaderSize:
			size = kv[1]
		case auxHeaderCount:
			n = kv[1]
		}
	}
	if headers == 0 || size < unsafe.Sizeof(programHeader{}) {
		return span{}, syscall.ENOEXEC
	}
	var bias uintptr
	var whole span
	page := uintptr(os.Getpagesize())
	for pass := range 2 {
		for i := range n {
			h := (*programHeader)(unsafe.Add(unsafe.Pointer(nil), headers+i*size))
			switch {
			case pass == 0 && h.kind == headersOfItself:
				bias = headers - uintptr(h.address)
			case pass == 1 && h.kind == loaded && h.flags&writable == 0:
				from, to := (bias+uintptr(h.address))&^(page-1), (bias+uintptr(h.address+h.memory)+page-1)&^(page-1)
				if whole.to == 0 || from < whole.from {
					whole.from = from
				}
				whole.to = max(whole.to, to)
			}
		}
	}
	if whole.to == 0 {
		return span{}, syscall.ENOEXEC
	}
	return whole, nil
})

// programHeader is Elf64_Phdr.
type programHeader struct {
	kind, flags                                      uint32
	offset, address, physical, file, memory, aligned uint64
}

// From the ELF format and its auxiliary vector.
const (
	auxHeaders, auxHeaderSize, auxHeaderCount = 3, 4, 5

	loaded, headersOfItself, writable = 1, 6, 2
)

// unmapOthers unmaps all memory of the process except the listed parts, so that a process that sees
// the child's memory or takes the child over finds nothing of the parent there.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func unmapOthers(t *task) syscall.Errno {
	if keepsMemory {
		return 0
	}
	from := uintptr(0)
	for i := 0; i < maxKept && t.kept[i].to != 0; i++ {
		if to := t.kept[i].from; to > from {
			if _, _, e := syscall.RawSyscall(unix.SYS_MUNMAP, from, to-from, 0); e != 0 {
				return e
			}
		}
		from = t.kept[i].to
	}
	// Up to the end of the address space, which depends on machine and kernel.
	e := syscall.Errno(0)
	for i := range 5 {
		var end uintptr
		switch i {
		case 0:
			end = 1 << 48
		case 1:
			end = 1<<47 - 4096
		case 2:
			end = 1 << 42
		case 3:
			end = 1 << 39
		case 4:
			end = 1 << 36
		}
		if end <= from {
			break
		}
		if _, _, e = syscall.RawSyscall(unix.SYS_MUNMAP, from, end-from, 0); e == 0 {
			return 0
		}
	}
	return e
}
