//go:build amd64

package main

import (
	"errors"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// sockets are attempts to have a socket that was not given.
func sockets() []attempt {
	list := map[string]func(*world) error{}
	for name, s := range map[string][3]int{
		"tcp": {unix.AF_INET, unix.SOCK_STREAM, 0}, "udp": {unix.AF_INET, unix.SOCK_DGRAM, 0}, "tcp6": {unix.AF_INET6, unix.SOCK_STREAM, 0}, "udp6": {unix.AF_INET6, unix.SOCK_DGRAM, 0},
		"raw icmp": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw ip": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, "packet": {unix.AF_PACKET, unix.SOCK_RAW, 0},
		"unix stream": {unix.AF_UNIX, unix.SOCK_STREAM, 0}, "unix datagram": {unix.AF_UNIX, unix.SOCK_DGRAM, 0}, "unix seqpacket": {unix.AF_UNIX, unix.SOCK_SEQPACKET, 0},
		"netlink route": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, "netlink uevent": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		"netlink audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC},
	} {
		list["socket "+name] = func(*world) error { return opened(unix.Socket(s[0], s[1]|unix.SOCK_CLOEXEC, s[2])) }
	}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		list["socketpair "+itoa(kind)] = func(*world) error {
			p, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(p[0])
				_ = unix.Close(p[1])
			}
			return err
		}
	}
	dial := func(kind, protocol int, to unix.Sockaddr) func(*world) error {
		return func(*world) error {
			fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Connect(fd, to)
		}
	}
	pod := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	list["connect to the pod"] = dial(unix.SOCK_STREAM, 0, pod)
	list["connect by mptcp"] = dial(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, pod)
	list["connect by udp"] = dial(unix.SOCK_DGRAM, 0, pod)
	list["send by udp"] = func(*world) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, []byte("x"), 0, pod)
	}
	bind := func(kind int, to unix.Sockaddr, family int) func(*world) error {
		return func(*world) error {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Bind(fd, to)
		}
	}
	list["bind tcp"] = bind(unix.SOCK_STREAM, &unix.SockaddrInet4{Port: 8081}, unix.AF_INET)
	list["bind udp"] = bind(unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: 8081}, unix.AF_INET)
	list["bind abstract"] = bind(unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@escape"}, unix.AF_UNIX)
	list["listen elsewhere"] = func(*world) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 8082}); err != nil {
			return err
		}
		return unix.Listen(fd, 1)
	}
	// Each sends from the given listener, after turning it into an ordinary socket: MSG_FASTOPEN
	// connects. Nobody listens at the port, so the pod refuses a connection that reaches it.
	base := []byte("x")
	part := &unix.Iovec{Base: &base[0], Len: 1}
	fastOpen := func(call func(fd uintptr, to *unix.RawSockaddrInet6) error) func(*world) error {
		return func(w *world) error {
			_ = unix.Shutdown(w.listen, unix.SHUT_RD)
			to := &unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: 0x0100, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}
			err := call(uintptr(w.listen), to)
			if errors.Is(err, unix.ECONNREFUSED) {
				err = nil
			}
			_ = raw(unix.SYS_CONNECT, uintptr(w.listen), uintptr(unsafe.Pointer(&unix.RawSockaddrInet4{Family: unix.AF_UNSPEC})), unix.SizeofSockaddrInet4)
			_ = unix.Listen(w.listen, 8)
			return err
		}
	}
	message := func(to *unix.RawSockaddrInet6) unix.Msghdr {
		return unix.Msghdr{Name: (*byte)(unsafe.Pointer(to)), Namelen: unix.SizeofSockaddrInet6, Iov: part, Iovlen: 1}
	}
	list["fast open by sendto"] = fastOpen(func(fd uintptr, to *unix.RawSockaddrInet6) error {
		return raw(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&base[0])), 1, unix.MSG_FASTOPEN, uintptr(unsafe.Pointer(to)), unix.SizeofSockaddrInet6)
	})
	list["fast open by sendmsg"] = fastOpen(func(fd uintptr, to *unix.RawSockaddrInet6) error {
		m := message(to)
		return raw(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m)), unix.MSG_FASTOPEN)
	})
	list["fast open by sendmmsg"] = fastOpen(func(fd uintptr, to *unix.RawSockaddrInet6) error {
		m := struct {
			unix.Msghdr
			sent uint32
		}{Msghdr: message(to)}
		return raw(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&m)), 1, unix.MSG_FASTOPEN)
	})
	return of("sockets", list)
}

// cloneArgs is the beginning of the kernel's struct clone_args.
type cloneArgs struct{ flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls uint64 }

// cloned makes a child with clone's flags, which ends at once.
func cloned(flags uintptr) error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

// inChild makes a call that replaces the program in a child, if there can be one, and else in the
// program itself: then its output ends there.
func inChild(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		_, _, errno = unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return errno
	}
	if pid == 0 {
		_, _, errno = unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &ws, 0, nil); err != nil {
		return err
	}
	if ws.ExitStatus() != toolStatus {
		return unix.Errno(ws.ExitStatus())
	}
	return nil
}

// executes gives a file the number of the program's own and executes it.
func executes(fd, number int) error {
	before, none := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 64)
	if err := unix.Dup3(fd, number, unix.O_CLOEXEC); err != nil {
		return err
	}
	defer func() {
		_ = unix.Close(number)
		if none == nil {
			_ = unix.Dup3(before, number, unix.O_CLOEXEC)
			_ = unix.Close(before)
		}
	}()
	a := []uintptr{ptr("tool"), 0}
	return inChild(unix.SYS_EXECVEAT, uintptr(number), ptr(""), uintptr(unsafe.Pointer(&a[0])), 0, unix.AT_EMPTY_PATH)
}

// processes are attempts to make, see, trace and signal processes.
func processes() []attempt {
	parent := func() uintptr { return uintptr(unix.Getpid()) }
	list := map[string]func(*world) error{
		"fork":                func(*world) error { return cloned(0) },
		"vfork":               func(*world) error { return cloned(unix.CLONE_VFORK) },
		"clone sharing files": func(*world) error { return cloned(unix.CLONE_FILES | unix.CLONE_FS) },
		"clone3": func(*world) error {
			c := cloneArgs{exitSignal: uint64(unix.SIGCHLD)}
			pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&c)), unsafe.Sizeof(c), 0)
			if errno != 0 {
				return errno
			}
			if pid == 0 {
				for {
					_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
				}
			}
			_, err := unix.Wait4(int(pid), nil, 0, nil)
			return err
		},
		"execve":            func(*world) error { return inChild(unix.SYS_EXECVE, ptr("/bin/tool"), 0, 0) },
		"kill":              func(*world) error { return raw(unix.SYS_KILL, parent(), 0) },
		"kill the first":    func(*world) error { return raw(unix.SYS_KILL, 1, 0) },
		"tkill":             func(*world) error { return raw(unix.SYS_TKILL, parent(), 0) },
		"kill the group":    func(*world) error { return raw(unix.SYS_KILL, 0, 0) },
		"pidfd_open":        func(*world) error { return rawOpened(unix.SYS_PIDFD_OPEN, parent(), 0) },
		"process_vm_readv":  func(*world) error { return raw(unix.SYS_PROCESS_VM_READV, parent(), 0, 0, 0, 0, 0) },
		"process_vm_writev": func(*world) error { return raw(unix.SYS_PROCESS_VM_WRITEV, parent(), 0, 0, 0, 0, 0) },
		"kcmp":              func(*world) error { _, err := call(unix.SYS_KCMP, parent(), parent(), 0, 0, 0); return err },
		"getpgid":           func(*world) error { return raw(unix.SYS_GETPGID, parent()) },
		"getsid":            func(*world) error { return raw(unix.SYS_GETSID, parent()) },
		"sched_setaffinity": func(*world) error {
			m := ^uint64(0)
			return raw(unix.SYS_SCHED_SETAFFINITY, 0, 8, uintptr(unsafe.Pointer(&m)))
		},
		"scheduler": func(*world) error {
			p := int32(0)
			return raw(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_BATCH, uintptr(unsafe.Pointer(&p)))
		},
		"priority":    func(*world) error { return raw(unix.SYS_SETPRIORITY, 0, 0, ^uintptr(4)) },
		"io priority": func(*world) error { return raw(unix.SYS_IOPRIO_SET, 1, 0, 2<<13) },
	}
	list["ptrace"] = func(*world) error { return traced() }
	return of("processes", list)
}

// traced asks to be traced in a child, as a debugger's child does.
func traced() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	}
	if pid == 0 {
		_, _, errno = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0, 0, 0)
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &ws, 0, nil); err != nil {
		return err
	}
	if n := ws.ExitStatus(); n != 0 {
		return unix.Errno(n)
	}
	return nil
}

// namespaces are attempts to have or to enter namespaces.
func namespaces() []attempt {
	list := map[string]func(*world) error{}
	for name, flag := range map[string]uintptr{
		"mount": unix.CLONE_NEWNS, "network": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "user": unix.CLONE_NEWUSER,
	} {
		list["clone "+name] = func(*world) error { return cloned(flag) }
		if flag != unix.CLONE_NEWUSER { // a program with threads cannot
			list["unshare "+name] = func(*world) error { return raw(unix.SYS_UNSHARE, flag) }
		}
	}
	list["setns"] = func(*world) error {
		fd, err := unix.Open("/proc/self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Setns(fd, 0)
	}
	list["name of the pod"] = func(*world) error {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return err
		}
		if unix.ByteSliceToString(u.Nodename[:]) != "the-pod" {
			return errNothing
		}
		return nil
	}
	list["sethostname"] = func(*world) error { b := []byte("the-pod"); return unix.Sethostname(b) }
	list["setdomainname"] = func(*world) error { return unix.Setdomainname([]byte("x")) }
	return of("namespaces", list)
}

// mounts are attempts to change the tree of mounts.
func mounts() []attempt {
	mountIn := func(fn func() error) func(*world) error {
		return func(*world) error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			return fn()
		}
	}
	return of("mounts", map[string]func(*world) error{
		"tmpfs":     mountIn(func() error { return unix.Mount("x", "/etc", "tmpfs", 0, "") }),
		"bind":      mountIn(func() error { return unix.Mount("/data", "/etc", "", unix.MS_BIND, "") }),
		"proc":      mountIn(func() error { return unix.Mount("x", "/etc", "proc", 0, "") }),
		"propagate": mountIn(func() error { return unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "") }),
		"unmount":   mountIn(func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }),
		"chroot":    mountIn(func() error { return unix.Chroot("/etc") }),
		"fsopen":    func(*world) error { return opened(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) },
		"open_tree": func(*world) error {
			return rawOpened(unix.SYS_OPEN_TREE, here, ptr("/"), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		},
		"open_tree of a directory": func(w *world) error {
			return rawOpened(unix.SYS_OPEN_TREE, uintptr(w.data), ptr("."), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		},
		"fspick": func(*world) error { return rawOpened(unix.SYS_FSPICK, here, ptr("/"), unix.FSPICK_CLOEXEC) },
		"mount_setattr": mountIn(func() error {
			return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID})
		}),
	})
}

// kernel are attempts to use calls of the kernel that need no file.
func kernel() []attempt {
	attr := make([]uint64, 16)
	attr[0], attr[1] = 2|4<<32, 4|1<<32 // an array of one element: type, key size; value size, entries
	perf := make([]uint32, 32)
	perf[0], perf[1] = 1, 128 // software, size
	perf[2] = 0
	return of("kernel", map[string]func(*world) error{
		"bpf":                   func(*world) error { return rawOpened(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr[0])), 72) },
		"userfaultfd":           func(*world) error { return rawOpened(unix.SYS_USERFAULTFD, unix.O_CLOEXEC) },
		"userfaultfd for users": func(*world) error { return rawOpened(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1) },
		"io_uring": func(*world) error {
			p := make([]uint32, 30)
			return rawOpened(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p[0])))
		},
		"io_uring polling": func(*world) error {
			p := make([]uint32, 30)
			p[2] = 1 << 3 // IORING_SETUP_CQSIZE
			p[1] = 4
			return rawOpened(unix.SYS_IO_URING_SETUP, 2, uintptr(unsafe.Pointer(&p[0])))
		},
		"perf": func(*world) error {
			return rawOpened(unix.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(&perf[0])), 0, ^uintptr(0), ^uintptr(0), 8)
		},
		"add_key":        func(*world) error { return raw(unix.SYS_ADD_KEY, ptr("user"), ptr("escape"), ptr("x"), 1, ^uintptr(1)) },
		"keyctl session": func(*world) error { return raw(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0) },
		"keyctl get":     func(*world) error { return raw(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(3), 1) },
		"memfd_create":   func(*world) error { return rawOpened(unix.SYS_MEMFD_CREATE, ptr("x"), unix.MFD_CLOEXEC) },
		"execute memory": func(*world) error { return memory() },
		"seccomp": func(*world) error {
			v := uint32(0x7fff0000)
			return raw(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&v)))
		},
		"landlock":    func(*world) error { return raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1) },
		"personality": func(*world) error { return raw(unix.SYS_PERSONALITY, 0xffffffff) },
		"setuid":      func(*world) error { return raw(unix.SYS_SETRESUID, 0, 0, 0) },
		"setgid":      func(*world) error { return raw(unix.SYS_SETRESGID, 0, 0, 0) },
		"setgroups":   func(*world) error { return raw(unix.SYS_SETGROUPS, 0, 0) },
		"capget": func(*world) error {
			h := [2]uint32{unix.LINUX_CAPABILITY_VERSION_3, 0}
			d := [6]uint32{}
			return raw(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d)))
		},
		"capability bound": func(*world) error { return raw(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, 40) },
		"be dumped":        func(*world) error { return raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1) },
		"parent's death":   func(*world) error { return raw(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0) },
		"limits of others": func(*world) error {
			l := unix.Rlimit{}
			return raw(unix.SYS_PRLIMIT64, uintptr(unix.Getpid()), unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&l)))
		},
		"syslog":   func(*world) error { return raw(unix.SYS_SYSLOG, 10, 0, 0) },
		"fanotify": func(*world) error { return rawOpened(unix.SYS_FANOTIFY_INIT, 1, 0) },
		"inotify":  func(*world) error { return rawOpened(unix.SYS_INOTIFY_INIT1, unix.IN_CLOEXEC) },
		"signalfd": func(*world) error {
			m := uint64(0)
			return rawOpened(unix.SYS_SIGNALFD4, ^uintptr(0), uintptr(unsafe.Pointer(&m)), 8, unix.O_CLOEXEC)
		},
		"munlockall":      func(*world) error { return raw(unix.SYS_MUNLOCKALL) },
		"getcpu":          func(*world) error { return raw(unix.SYS_GETCPU, 0, 0, 0) },
		"clock of others": func(*world) error { var t unix.Timex; _, err := unix.Adjtimex(&t); return err },
	})
}

// memory executes a file that has no name.
func memory() error {
	fd, err := unix.MemfdCreate("tool", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, exits); err != nil {
		return err
	}
	return inChild(unix.SYS_EXECVEAT, uintptr(fd), ptr(""), 0, 0, unix.AT_EMPTY_PATH)
}

// shared are attempts to use memory and queues that processes share by number or name.
func shared() []attempt {
	list := map[string]func(*world) error{}
	for name, nr := range map[string]uintptr{"semget": unix.SYS_SEMGET, "shmget": unix.SYS_SHMGET} {
		list[name] = func(*world) error { return raw(nr, 0x5151, 1, unix.IPC_CREAT|0o600) }
	}
	list["msgget"] = func(*world) error { return raw(unix.SYS_MSGGET, 0x5151, unix.IPC_CREAT|0o600) }
	list["mq_open"] = func(*world) error {
		return rawOpened(unix.SYS_MQ_OPEN, ptr("escape"), unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	}
	list["shared memory by name"] = func(*world) error {
		return opened(unix.Open("/dev/shm/escape", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600))
	}
	return of("shared", list)
}

// self are attempts to reopen one's own descriptors, memory and program, and other descriptors.
func self() []attempt {
	list := map[string]func(*world) error{}
	for _, p := range []string{"/proc/self/fd/1", "/dev/fd/1", "/dev/stdout", "/proc/self/exe", "/proc/self/mem", "/proc/self/environ", "/proc/thread-self/ns/net", "/dev/kmsg"} {
		list["open "+p] = func(*world) error { return opened(unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)) }
	}
	for i := range notGiven {
		list["descriptor "+itoa(programFD+i)+" that was not given"] = func(w *world) error { return w.early[i] }
	}
	list["many descriptors"] = func(*world) error {
		var all []int
		defer func() {
			for _, fd := range all {
				_ = unix.Close(fd)
			}
		}()
		for len(all) < manyFiles {
			fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 100)
			if err != nil {
				return err
			}
			all = append(all, fd)
		}
		return nil
	}
	return of("self", list)
}

// manyFiles is more than a granted program may have open.
const manyFiles = 5000

// toolStatus is how the program exits that attempts execute.
const toolStatus = 93
