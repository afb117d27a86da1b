package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's, whose mask comes last on amd64 and arm64.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// ignored is SIG_IGN.
const ignored = 1

// HeedSignals takes back what whoever started us had ignored: nohup ignores
// SIGHUP, others SIGPIPE, and every container would inherit it.
func HeedSignals() {
	for sig := uintptr(1); sig < 32; sig++ {
		var now, heed sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), unsafe.Sizeof(now.mask), 0, 0)
		if errno == 0 && now.handler == ignored {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&heed)), 0, unsafe.Sizeof(heed.mask), 0, 0)
		}
	}
}
