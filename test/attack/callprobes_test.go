package attack

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a probe that is one system call; undo reverts its effect.
func call(name string, do func() error, undo func(), granted ...actor) probe {
	return probe{name: name, granted: granted, run: func([]string) result {
		runtime.LockOSThread()
		err := do()
		if err == nil && undo != nil {
			undo()
		}
		return answered(name, err)
	}}
}

// only says why the control, as the host's root, does not make this call.
func only(why string, p probe) probe {
	p.outside = why
	return p
}

func errnoOf(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// descriptor returns the error of a call that makes a descriptor, which it closes.
func descriptor(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	fd, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if e == 0 {
		_ = unix.Close(int(fd))
	}
	return errnoOf(e)
}

func callProbes() []probe {
	text := func(s string) uintptr { return uintptr(unsafe.Pointer(&append([]byte(s), 0)[0])) }
	return append([]probe{
		call("mount a tmpfs", func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }, func() { _ = unix.Unmount("/tmp", unix.MNT_DETACH) }),
		call("mount a cgroup hierarchy", func() error { return unix.Mount("cgroup", "/tmp", "cgroup", 0, "none,name=attack") }, func() { _ = unix.Unmount("/tmp", unix.MNT_DETACH) }),
		call("mount a proc", func() error { return unix.Mount("proc", "/tmp", "proc", 0, "") }, func() { _ = unix.Unmount("/tmp", unix.MNT_DETACH) }),
		call("bind the root", func() error { return unix.Mount("/", "/tmp", "", unix.MS_BIND|unix.MS_REC, "") }, func() { _ = unix.Unmount("/tmp", unix.MNT_DETACH) }),
		call("make the root shared", func() error { return unix.Mount("", "/", "", unix.MS_SHARED, "") }, nil),
		call("remount the root", func() error { return unix.Mount("", "/proc", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, nil),
		call("umount /proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }, nil),
		only("it has no mask", call("umount a mask", func() error { return unix.Unmount("/proc/keys", unix.MNT_DETACH) }, nil)),
		only("it has no read-only path", call("remount /proc/sys", func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, nil)),
		only("it has only its own root", call("pivot_root", func() error { return unix.PivotRoot("/", "/tmp") }, nil)),
		call("fsopen ext4", func() error { return descriptor(unix.SYS_FSOPEN, text("ext4")) }, nil),
		call("open_tree", func() error {
			at := unix.AT_FDCWD
			return descriptor(unix.SYS_OPEN_TREE, uintptr(at), text("/"), unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
		}, nil),
		call("setns to a net namespace", func() error {
			fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			return unix.Setns(fd, unix.CLONE_NEWNET)
		}, nil),
		call("unshare the mount namespace", func() error { return unix.Unshare(unix.CLONE_NEWNS) }, nil),
		call("unshare the cgroup namespace", func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) }, nil),
		call("bpf: walk the programs", func() error {
			var attr [128]byte
			_, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_GET_NEXT_ID, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
			if e == unix.ENOENT { // there is none, but the call was allowed
				e = 0
			}
			return errnoOf(e)
		}, nil),
		call("perf: watch a whole CPU", func() error {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
			fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}, nil, withoutAdmin),
		call("fanotify: decide about opens", func() error {
			fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT, unix.O_RDONLY)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}, nil),
		// The default seccomp profile denies these; without a profile a program may make
		// them.
		call("io_uring_setup", func() error {
			var params [256]byte
			return descriptor(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])))
		}, nil, withPtrace, withoutAdmin),
		call("userfaultfd", func() error { return descriptor(unix.SYS_USERFAULTFD, unix.O_CLOEXEC) }, nil, withPtrace, withoutAdmin),
		call("keyctl: the user's keyring", func() error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
			return err
		}, nil, withPtrace, withoutAdmin),
		call("add_key", func() error {
			_, err := unix.AddKey("user", "attack", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		}, nil, withPtrace, withoutAdmin),
		only("it would work", call("kexec_load", func() error { return errnoOf(second(unix.Syscall6(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0, 0, 0))) }, nil, withoutAdmin)),
		only("it would work", call("init_module", func() error {
			return unix.InitModule([]byte("no module"), "")
		}, nil, withoutAdmin)),
		only("it would work", call("reboot: take ctrl-alt-del", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) }, nil, withoutAdmin)),
		only("it is the machine's", call("settimeofday", func() error {
			var tv unix.Timeval
			_ = unix.Gettimeofday(&tv)
			return unix.Settimeofday(&tv)
		}, nil, withoutAdmin)),
		only("it is the machine's", call("acct", func() error { return unix.Acct("/tmp/acct") }, nil, withoutAdmin)),
		only("it is the machine's", call("swapon", func() error {
			return errnoOf(second(unix.Syscall(unix.SYS_SWAPON, text("/tmp"), 0, 0)))
		}, nil)),
		only("it is the machine's", call("sethostname", func() error { return unix.Sethostname([]byte("taken")) }, nil)),
		only("it is the machine's", call("syslog: clear", func() error {
			_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64))
			return err
		}, nil, withoutAdmin)),
		call("iopl", func() error {
			if runtime.GOARCH != "amd64" {
				return unix.ENOSYS
			}
			return errnoOf(second(unix.Syscall(172, 3, 0, 0)))
		}, nil, withoutAdmin),
		call("raise a hard limit", func() error {
			var l unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_NPROC, &l)
			_ = unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1 << 16, Max: 1 << 16})
			return unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1 << 17, Max: 1 << 17})
		}, nil, withoutAdmin),
		call("a real-time priority", func() error {
			p := int32(1)
			return errnoOf(second(unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&p)))))
		}, nil, withoutAdmin),
		call("never be killed for memory", func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }, nil, withoutAdmin),
		call("quotactl", func() error {
			e := second(unix.Syscall6(unix.SYS_QUOTACTL, uintptr(0x800007<<8), text("/dev/vda"), 0, 0, 0, 0))
			if e == unix.ESRCH || e == unix.ENOTBLK || e == unix.EINVAL || e == unix.ENOSYS {
				e = 0
			}
			return errnoOf(e)
		}, nil),
		{name: "chroot and climb", run: climb, granted: nil, outside: "it has only its own root"},
		{name: "a user namespace and a fresh proc", run: freshProc, outside: "it needs none"},
	}, handleProbe())
}

func second(_, _ uintptr, e unix.Errno) unix.Errno { return e }

// climb leaves a chroot through a descriptor opened before, and looks for the host's
// file.
func climb(args []string) result {
	if len(args) == 0 {
		return is(unmade, "no file to look for")
	}
	dir, err := os.MkdirTemp("/tmp", "jail")
	if err != nil {
		return is(unmade, "%v", err)
	}
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return is(unmade, "%v", err)
	}
	if err := unix.Chroot(dir); err != nil {
		return answered("chroot", err)
	}
	if err := unix.Fchdir(fd); err != nil {
		return is(unmade, "fchdir: %v", err)
	}
	if err := unix.Chdir("../../../../../../.."); err != nil {
		return is(unmade, "chdir: %v", err)
	}
	if err := unix.Chroot("."); err != nil {
		return is(unmade, "chroot: %v", err)
	}
	if b, err := os.ReadFile(args[0]); err == nil {
		return is(reached, "left the chroot and read %q", b)
	}
	return is(refused, "left the chroot; above it is the container's own root")
}

// freshProc makes a user namespace, has all capabilities there, and mounts a proc without
// masks.
func freshProc([]string) result {
	self, err := os.Executable()
	if err != nil {
		return is(unmade, "%v", err)
	}
	cmd := exec.Command(self, probeArg, "inside a user namespace") //nolint:forbidigo,noctx // it ends by itself
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		return answered("clone into a user namespace", err)
	}
	return decode(out)
}

// handleProbe opens the root of a file's file system by its file handle, which checks no
// directory above it.
func handleProbe() probe {
	return probe{name: "open_by_handle_at", granted: []actor{withoutAdmin}, outside: "a handle leads where it was made", run: func([]string) result {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/etc/hosts", 0)
		if err != nil {
			return answered("name_to_handle_at /etc/hosts", err, unix.EOPNOTSUPP)
		}
		fd, err := unix.Open("/etc/hosts", unix.O_RDONLY, 0)
		if err != nil {
			return is(unmade, "%v", err)
		}
		got, err := unix.OpenByHandleAt(fd, h, unix.O_RDONLY)
		if err == nil {
			_ = unix.Close(got)
		}
		return answered("open_by_handle_at", err)
	}}
}

// helperProbes are parts of other probes.
func helperProbes() []probe {
	return []probe{
		{name: "inside a user namespace", run: func([]string) result {
			for _, p := range []string{"/proc", "/tmp"} {
				if err := unix.Mount("proc", p, "proc", 0, ""); err == nil {
					return is(reached, "a proc without masks on %s", p)
				} else if p == "/tmp" {
					return answered("mount a proc in a user namespace", err)
				}
			}
			return is(unmade, "nothing")
		}},
		{name: "setuid file", run: setuid},
		{name: "who", run: func([]string) result {
			if euid := os.Geteuid(); euid != 0 {
				return is(refused, "its user is %d", euid)
			}
			return is(reached, "its user is root")
		}},
		{name: "connect", run: connect},
		{name: "read", run: func(args []string) result {
			b, err := os.ReadFile(args[0])
			if err == nil {
				return is(reached, "read %d bytes", len(b))
			}
			return answered("read "+args[0], err)
		}},
		{name: "tree", run: tree},
	}
}

// tree walks a directory as far as it is allowed and tries to open everything below.
func tree(args []string) result {
	tried := 0
	for _, dir := range args {
		tried++
		entries, err := os.ReadDir(dir)
		if err == nil {
			names := make([]string, 0, len(entries))
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return is(reached, "listed %s: %s", dir, strings.Join(names, " "))
		}
		if err := unix.Access(filepath.Join(dir, "."), unix.X_OK); err == nil {
			return is(reached, "may search %s", dir)
		}
	}
	if tried == 0 {
		return is(unmade, "no directory")
	}
	return is(refused, "%d directories: none listed, none searched", tried)
}

// setuid runs a copy of this program that belongs to root and is setuid.
func setuid(args []string) result {
	out, err := exec.Command(args[0], probeArg, "who").Output() //nolint:forbidigo,noctx // it ends by itself
	if err != nil {
		return answered("run "+args[0], err)
	}
	r := decode(out)
	r.Evidence = args[0] + " ran: " + r.Evidence
	return r
}

// connect tries to talk to unix sockets.
func connect(args []string) result {
	last := is(unmade, "no socket")
	for _, path := range args {
		err := error(unix.EPROTOTYPE)
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			if !errors.Is(err, unix.EPROTOTYPE) {
				break
			}
			fd, e := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if e != nil {
				return is(unmade, "%v", e)
			}
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			_ = unix.Close(fd)
		}
		if last = answered("connect to "+path, err); last.Outcome == reached {
			return last
		}
	}
	return last
}
