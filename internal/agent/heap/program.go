package heap

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dropProgram unmaps the pages of the program's file that this process has used. A page that is used again is mapped again from
// the page cache, with its neighbours. Three quarters of the pages that the agent's start uses are not used again: the kernel
// reclaims them first when memory is short, and they no longer count for this process.
func dropProgram() error { return adviseProgram(unix.MADV_DONTNEED) }

// adviseProgram calls madvise for the mappings of the program's file that are not writable.
func adviseProgram(advice int) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	var errs []error
	for line := range bytes.Lines(maps) {
		var from, to uintptr
		var mode string
		// Writable pages are data, which the file does not have.
		if n, _ := fmt.Sscanf(string(line), "%x-%x %s", &from, &to, &mode); n != 3 || len(mode) != 4 || mode[1] != '-' || mode[3] != 'p' || !bytes.HasSuffix(line, []byte(" "+self+"\n")) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, uintptr(advice)); errno != 0 {
			errs = append(errs, fmt.Errorf("madvise pages %x-%x of the program: %w", from, to, errno))
		}
	}
	return errors.Join(errs...)
}
