// Command confined tries what a default AppArmor profile forbids, and prints a line for each attempt:
// its name and "ok", or the error.
//
//	confined PID FIRMWARE
//
// PID is a process outside of the container, and FIRMWARE a file below /sys/firmware.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const target = "/tmp/confined"

// attempt is one operation that the profile forbids.
type attempt struct {
	name string
	try  func() error
}

func main() {
	runtime.LockOSThread() // the tracer of a process is a thread
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: confined PID FIRMWARE")
		os.Exit(2)
	}
	outside, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = os.MkdirAll(target, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, a := range append(files(os.Args[2]), others(outside)...) {
		result := "ok"
		if err := a.try(); err != nil {
			result = err.Error()
			if errno := unix.Errno(0); errors.As(err, &errno) {
				result = unix.ErrnoName(errno)
			}
		}
		fmt.Println(a.name + ": " + result)
	}
}

// files returns the attempts to open files. None of them changes a file.
func files(firmware string) (list []attempt) {
	for _, f := range []struct {
		name string
		mode int
	}{
		{"/proc/sysrq-trigger", unix.O_WRONLY},
		{"/proc/kcore", unix.O_RDONLY},
		{"/proc/sys/kernel/core_pattern", unix.O_WRONLY},
		{"/proc/sys/kernel/modprobe", unix.O_WRONLY},
		{"/proc/sys/vm/overcommit_memory", unix.O_WRONLY},
		{"/proc/sys/net/ipv4/ip_forward", unix.O_WRONLY},
		{"/proc/sys/fs/pipe-max-size", unix.O_WRONLY},
		{"/proc/irq/default_smp_affinity", unix.O_WRONLY},
		{"/sys/module/kernel/parameters/panic", unix.O_WRONLY},
		{"/sys/kernel/security/apparmor/profiles", unix.O_RDONLY},
		{firmware, unix.O_RDONLY},
	} {
		list = append(list, attempt{"open " + f.name, func() error {
			fd, err := unix.Open(f.name, f.mode|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}})
	}
	return list
}

// others returns the attempts on mounts, processes and profiles.
func others(outside int) []attempt {
	mount := func(source, fstype string, flags uintptr) func() error {
		return func() error {
			if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
				return err
			}
			return unix.Unmount(target, unix.MNT_DETACH)
		}
	}
	return []attempt{
		{"mount tmpfs", mount("tmpfs", "tmpfs", 0)},
		{"mount proc", mount("proc", "proc", 0)},
		{"bind mount", mount("/proc", "", unix.MS_BIND)},
		{"remount", func() error { return unix.Mount("", "/proc", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		{"make private", func() error { return unix.Mount("", "/proc", "", unix.MS_PRIVATE, "") }},
		{"fsopen and move_mount", newMount},
		{"trace a process outside", func() error { return unix.PtraceSeize(outside) }},
		{"read the environment of a process outside", func() error {
			_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", outside))
			return err
		}},
		{"signal a process outside", func() error { return unix.Kill(outside, unix.SIGCONT) }},
		{"change to no profile", func() error {
			return os.WriteFile("/proc/thread-self/attr/apparmor/current", []byte("changeprofile unconfined"), 0)
		}},
	}
}

// newMount mounts a tmpfs by the system calls of Linux 5.2.
func newMount() error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Unmount(target, unix.MNT_DETACH)
}
