package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// kernel has the system calls that change the whole machine. Tests replace them.
type kernel struct {
	setClock func(seconds, micros int64) error
	entropy  func(data []byte) error
	swapOn   func(path string) error
	program  func(ctx context.Context, stdin []byte, path string, args ...string) ([]byte, error)
	node     func(path string) (Node, error)
}

func realKernel() kernel {
	return kernel{setClock: setClock, entropy: addEntropy, swapOn: swapOn, program: runProgram, node: nodeAt}
}

// SetClock sets the machine's time.
func (m *Machine) SetClock(seconds, micros int64) error {
	if micros < 0 || micros >= 1e6 || seconds < 0 {
		return invalid.Errorf("set the clock: %d s and %d µs is no time", seconds, micros)
	}
	if err := m.kernel.setClock(seconds, micros); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

func setClock(seconds, micros int64) error {
	tv := unix.NsecToTimeval(micros * 1000)
	tv.Sec = seconds
	return unix.Settimeofday(&tv)
}

// maxEntropy is how much data the kernel takes at once.
const maxEntropy = 64 << 10

// AddEntropy adds secret random data to the kernel's, and reseeds its generator.
func (m *Machine) AddEntropy(data []byte) error {
	if len(data) == 0 || len(data) > maxEntropy {
		return invalid.Errorf("add entropy: %d bytes; one to %d are wanted", len(data), maxEntropy)
	}
	if err := m.kernel.entropy(data); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	return nil
}

func addEntropy(data []byte) error {
	f, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// struct rand_pool_info: bits, bytes, data.
	info := make([]byte, 8, 8+len(data))
	binary.NativeEndian.PutUint32(info, uint32(len(data)*8))
	binary.NativeEndian.PutUint32(info[4:], uint32(len(data)))
	info = append(info, data...)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return errno
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.RNDRESEEDCRNG, 0)
}

// AddSwap has the kernel swap to a device or file.
func (m *Machine) AddSwap(path string) error {
	if !filepath.IsAbs(path) {
		return invalid.Errorf("add swap: %q is no absolute path", path)
	}
	if err := m.kernel.swapOn(path); err != nil {
		return fmt.Errorf("add swap %s: %w", path, err)
	}
	return nil
}

func swapOn(path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(p)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// ProbeMemory tells the kernel the addresses of memory that was plugged in.
func (m *Machine) ProbeMemory(addresses []uint64) error {
	probe := filepath.Join(m.sysfs, "devices/system/memory/probe")
	for _, a := range addresses {
		if err := writeFile(probe, fmt.Sprintf("0x%X", a)); err != nil {
			return fmt.Errorf("probe memory at 0x%X: %w", a, err)
		}
	}
	return nil
}

// writeFile writes to a file of the kernel's, which exists.
func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// OnlineCPUs has the kernel use processors until there are as many as wanted, and waits
// for those that are still being plugged in. Containers' processors are widened with it
// where the kernel does not do so by itself.
func (m *Machine) OnlineCPUs(ctx context.Context, want int) error {
	before := m.cpuset("")
	var online int
	var failed error
	err := await(ctx, fmt.Sprintf("not each of %d processors", want), max(m.PlugTime, m.cpuTime), func() bool {
		online, failed = m.onlineCPUs(want)
		return online >= want
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %d are used", err, online), failed)
	}
	return m.widen(ctx, before)
}

// onlineCPUs switches processors on until enough are, and returns how many are.
func (m *Machine) onlineCPUs(want int) (online int, err error) {
	dirs, err := filepath.Glob(filepath.Join(m.sysfs, "devices/system/cpu/cpu[0-9]*"))
	if err != nil {
		return 0, err
	}
	var off []string
	for _, dir := range dirs {
		if _, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "cpu")); err != nil {
			continue
		}
		switch b, err := os.ReadFile(filepath.Join(dir, "online")); {
		case errors.Is(err, fs.ErrNotExist): // one that cannot be switched off
			online++
		case err != nil:
			return online, err
		case strings.TrimSpace(string(b)) == "1":
			online++
		default:
			off = append(off, dir)
		}
	}
	var errs []error
	for _, dir := range off {
		if online >= want {
			break
		}
		if err := writeFile(filepath.Join(dir, "online"), "1"); err != nil {
			errs = append(errs, err)
			continue
		}
		online++
	}
	return online, errors.Join(errs...)
}

// OnlineMemory makes the kernel use all plugged in memory, and later memory by itself, because a
// caller does not know how much is still on its way.
func (m *Machine) OnlineMemory() error {
	if err := writeFile(filepath.Join(m.sysfs, "devices/system/memory/auto_online_blocks"), "online"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("use plugged memory: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(m.sysfs, "devices/system/memory/memory[0-9]*/online"))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.TrimSpace(string(b)) != "0" {
			continue
		}
		if err == nil {
			err = writeFile(f, "1")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("use plugged memory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// cpuset returns the processors of a cgroup of v1 below its hierarchy's root, "" where
// there is none. On v2 a cgroup without processors of its own has its parent's.
func (m *Machine) cpuset(group string) string {
	b, err := os.ReadFile(filepath.Join(m.sysfs, "fs/cgroup/cpuset", group, "cpuset.cpus"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// widen gives the containers' cgroups that had all processors all there are now.
func (m *Machine) widen(ctx context.Context, before string) error {
	if before == "" {
		return nil
	}
	// The kernel gives the root its new processors a moment after it uses them.
	var after string
	err := await(ctx, "no processor for cgroups", m.cpuTime, func() bool {
		b, err := os.ReadFile(filepath.Join(m.sysfs, "devices/system/cpu/online"))
		after = m.cpuset("")
		return err != nil || strings.TrimSpace(string(b)) == after
	})
	if err != nil || before == after {
		return err
	}
	root := filepath.Join(m.sysfs, "fs/cgroup/cpuset")
	var dirs []string
	err = filepath.WalkDir(filepath.Join(root, m.Groups), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // a container was removed
			return nil
		}
		if err == nil && d.IsDir() && path != root {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("give containers the new processors: %w", err)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return strings.Count(a, "/") - strings.Count(b, "/") }) // a parent must have them first
	for _, dir := range dirs {
		file := filepath.Join(dir, "cpuset.cpus")
		b, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(b)) == before {
			err = writeFile(file, after)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("give containers the new processors: %w", err)
		}
	}
	return nil
}
