package kernel

import (
	"golang.org/x/sys/unix"
)

// hugePage is the smallest huge page of the supported machines.
const hugePage = 2 << 20

// HugePages sets whether this process, the programs it executes and its later children
// may get transparent huge pages. If the system always gives them (Debian's setting),
// the first kilobytes of a Go program's heap take two megabytes.
func HugePages(allowed bool) {
	no := uintptr(1)
	if allowed {
		no = 0
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, no, 0, 0, 0) // fails on a kernel without huge pages
}

// SmallPages is for a program that was executed without huge pages, while its children may use
// them. It keeps this process's existing mappings small, and allows huge pages again for children.
// SmallEnv keeps the Go runtime's later mappings small.
func SmallPages() {
	var b [16 << 10]byte
	maps := b[:readFile("/proc/self/maps", b[:])]
	for len(maps) > 0 {
		line := maps
		for i, c := range maps {
			if c == '\n' {
				line = maps[:i]
				break
			}
		}
		maps = maps[min(len(line)+1, len(maps)):]
		from, rest := hex(line)
		if len(rest) == 0 {
			continue
		}
		to, rest := hex(rest[1:])
		if len(rest) < 3 || rest[1] != 'r' || rest[2] != 'w' || to < from+hugePage {
			continue
		}
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_NOHUGEPAGE)
	}
	HugePages(true)
}

// readFile fills b with the beginning of a file and returns how much it read.
func readFile(path string, b []byte) (n int) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(fd) }()
	for n < len(b) {
		k, err := unix.Read(fd, b[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k <= 0 {
			break
		}
		n += k
	}
	return n
}

// hex returns the hexadecimal number at the beginning of b.
func hex(b []byte) (v uintptr, rest []byte) {
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uintptr(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uintptr(c-'a'+10)
		default:
			return v, b[i:]
		}
	}
	return v, nil
}
