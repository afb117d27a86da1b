package stdio

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// numberOf splits a path that ends in .N.
func numberOf(path string) (base string, n int, ok bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return path, 0, false
	}
	n, err := strconv.Atoi(path[i+1:])
	return path[:i], n, err == nil && n >= 0
}

// findNumber makes the sink's path the one with the highest existing number, so that a new process
// continues after the last one.
func (k *Sink) findNumber() {
	base, highest, ok := numberOf(k.Path)
	if !ok {
		return
	}
	d, _, err := k.dir()
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(d) }()
	name := base[strings.LastIndexByte(base, '/')+1:]
	for _, entry := range list(d) {
		if b, n, ok := numberOf(entry); ok && b == name && n > highest {
			highest = n
		}
	}
	k.Path = base + "." + kernel.Itoa(highest)
}

// nextNumber makes the next write go to a new file, and removes the file that is too
// old then.
func (k *Sink) nextNumber() {
	base, n, ok := numberOf(k.Path)
	if !ok {
		return
	}
	if old := n + 1 - max(k.MaxFiles, 1); old >= 0 {
		if d, _, err := k.dir(); err == nil {
			_ = unix.Unlinkat(d, base[strings.LastIndexByte(base, '/')+1:]+"."+kernel.Itoa(old), 0)
			_ = unix.Close(d)
		}
	}
	k.Path = base + "." + kernel.Itoa(n+1)
	k.Close()
}
