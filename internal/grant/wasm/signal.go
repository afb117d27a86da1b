package wasm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exitHandler returns the address of a signal handler that ends the process with 128 and the signal's number.
func exitHandler() uintptr

// endBySignal installs exitHandler for the signals that usually end a program. The process is the first of its pid namespace, which signals
// without a handler do not end. Go's own handlers are not enough: they only wake a goroutine, and the scheduler does not run it while a busy
// module has the last processor or holds up a garbage collection.
func endBySignal() error {
	const (
		onStack  = 0x08000000 // SA_ONSTACK: a module's stack may be too small
		restorer = 0x04000000 // SA_RESTORER, which amd64 requires. The handler does not return
	)
	handler := exitHandler()
	action := struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}{handler, onStack | restorer, handler, ^uint64(0)}
	for _, s := range endingSignals {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 {
			return fmt.Errorf("handle %s: %w", unix.SignalName(s), errno)
		}
	}
	return nil
}
