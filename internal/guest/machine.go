// Package guest is the machine inside of a virtual machine, as an agent there sees and
// changes it: its memory, its storages.
//
// It knows no protocol; its errors are the machine's. Start at Machine.
package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/longshore/longshore/internal/keylock"
)

// Machine is this machine. It must not be copied.
type Machine struct {
	// Groups is the directory of containers' cgroups below each hierarchy's root.
	Groups string
	// PlugTime is how long a device may take that the host is plugging in.
	PlugTime time.Duration
	// Logger gets errors outside of calls.
	Logger *slog.Logger
	// Puller is nil on a machine that pulls no images.
	Puller *Puller

	sysfs   string
	procfs  string
	shared  string
	dev     string
	kernel  kernel
	cpuTime time.Duration
	scrapes atomic.Uint64

	targets keylock.Map[string] // of storages; held while one is mounted or unmounted
	used    references
	pages   pagePool
	copies  copies

	watchTime time.Duration
}

// New returns the machine that this process runs on.
func New() *Machine {
	return &Machine{PlugTime: PlugTime, sysfs: "/sys", procfs: "/proc", shared: Shared, dev: "/dev", kernel: realKernel(), cpuTime: cpuTime, watchTime: watchTime, Logger: slog.New(slog.DiscardHandler)}
}

// First reports whether this process is the machine's first.
func (m *Machine) First() bool { return os.Getpid() == 1 }

// MemoryBlock returns the size of a block of pluggable memory, in bytes, and whether the kernel
// must be probed with a block's address. The size is 0 on a machine without pluggable memory.
func (m *Machine) MemoryBlock() (size uint64, probe bool, err error) {
	dir := filepath.Join(m.sysfs, "devices/system/memory")
	b, err := os.ReadFile(filepath.Join(dir, "block_size_bytes"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if size, err = strconv.ParseUint(strings.TrimSpace(string(b)), 16, 64); err != nil {
		return 0, false, fmt.Errorf("size of memory blocks: %w", err)
	}
	_, err = os.Lstat(filepath.Join(dir, "probe"))
	if errors.Is(err, fs.ErrNotExist) {
		return size, false, nil
	}
	return size, err == nil, err
}
