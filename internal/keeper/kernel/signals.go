package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's structure on amd64 and arm64, where the mask is the last
// field.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// ignored is SIG_IGN.
const ignored = 1

// ResetSignals restores the default for signals that this program's parent has ignored.
// nohup ignores SIGHUP, others SIGPIPE, and every container would inherit that.
func ResetSignals() {
	for sig := uintptr(1); sig < 32; sig++ {
		var now, dfl sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), unsafe.Sizeof(now.mask), 0, 0)
		if errno == 0 && now.handler == ignored {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&dfl)), 0, unsafe.Sizeof(dfl.mask), 0, 0)
		}
	}
}
