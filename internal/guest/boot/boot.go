// Package boot is the work of a virtual machine's first process besides being an agent: it mounts
// the kernel's file systems, takes the console, names the machine, sets its loopback link up, reaps
// inherited processes, and powers the machine off.
//
// It knows no containers and reads no options. The functions take a root directory, so that a test
// can use one of its own. Start at Prepare and Reap.
package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Path is where a machine's programs are.
const Path = "/bin:/sbin:/usr/bin:/usr/sbin"

// maxFiles is how many files a process may have open, as the unit of a node's agent
// says: the keeper holds some of each container.
const maxFiles = 1 << 20

// Prepare prepares a bare machine for programs: mounts, console, name and loopback. Cgroups mounts
// cgroups after the options, which are below /proc, were read.
func Prepare() error {
	if err := Mount("/"); err != nil {
		return err
	}
	if err := console("/dev/console"); err != nil {
		return err
	}
	if err := os.Setenv("PATH", Path); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxFiles, Max: maxFiles}); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if err := hostname("/etc/hostname"); err != nil {
		return err
	}
	return loopback()
}

// console makes the console this process's standard streams and controlling terminal. A
// machine without one has nobody to tell.
func console(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the console: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // it has been copied
	for to := range 3 {
		if err := unix.Dup3(fd, to, 0); err != nil {
			return fmt.Errorf("console: %w", err)
		}
	}
	// The process may lead a session already, or have the terminal: then nothing changes.
	_, _ = unix.Setsid()
	_ = unix.IoctlSetInt(fd, unix.TIOCSCTTY, 0)
	return nil
}

// hostname names the machine as a file says, or else localhost.
func hostname(path string) error {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := unix.Sethostname([]byte(nameIn(string(b)))); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	return nil
}

// nameIn is the first line of a file with a hostname that says something.
func nameIn(file string) string {
	const longest = 64 // the kernel's
	for line := range strings.Lines(file) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return line[:min(len(line), longest)]
		}
	}
	return "localhost"
}

// loopback sets the link lo up, which gives it its addresses.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("flags of lo: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// PowerOff writes everything out and powers the machine off. It returns only when the
// kernel refuses that.
func PowerOff() error {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	return nil
}

// below is a path of the machine below a root directory.
func below(root, path string) string { return filepath.Join(root, path) }
