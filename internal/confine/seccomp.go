package confine

import "golang.org/x/sys/unix"

// deniedCalls are the system calls that a process which fetches and unpacks does not
// need: those about other processes and programs, mounts, namespaces, kernel modules and
// clocks, and those that kernel exploits use most.
func deniedCalls() []uint32 {
	return append([]uint32{
		unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
		unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_KILL,
		unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
		unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR,
		unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
		unix.SYS_IO_URING_REGISTER, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_FANOTIFY_INIT,
		unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
		unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_PERSONALITY, unix.SYS_VHANGUP,
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS,
	}, archCalls()...)
}

// Offsets in struct seccomp_data; the low word of an argument on little-endian
// machines.
const (
	offNR   = 0
	offArch = 4
	offArg0 = 16
	offArg1 = 24
	offArg2 = 32
)

// compileFilter denies these calls, and sockets of other families, with EPERM, and every
// call of another architecture with ENOSYS. With plain set, it also denies the options of sockets that need capabilities for
// networks: those of netfilter have numbers from 64 on.
func compileFilter(arch uint32, denied, families []uint32, plain bool) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	refuse := func(errno uint32) unix.SockFilter {
		return unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | errno}
	}
	prog := []unix.SockFilter{
		{Code: load, K: offArch},
		{Code: equal, Jt: 1, K: arch},
		refuse(uint32(unix.ENOSYS)),
		{Code: load, K: offNR},
		{Code: least, Jf: 1, K: 0x4000_0000}, // x32
		refuse(uint32(unix.ENOSYS)),
	}
	for _, nr := range denied {
		prog = append(prog, unix.SockFilter{Code: equal, Jf: 1, K: nr}, refuse(uint32(unix.EPERM)))
	}
	allow := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}
	if plain {
		const firstNetfilter = 64
		prog = append(prog,
			unix.SockFilter{Code: equal, Jf: 9, K: unix.SYS_SETSOCKOPT},
			unix.SockFilter{Code: load, K: offArg1},
			unix.SockFilter{Code: equal, Jt: 5, K: unix.SOL_SOCKET},
			unix.SockFilter{Code: equal, Jt: 4, K: unix.SOL_TCP},
			unix.SockFilter{Code: equal, Jt: 1, K: unix.SOL_IP},
			unix.SockFilter{Code: equal, Jf: 3, K: unix.SOL_IPV6},
			unix.SockFilter{Code: load, K: offArg2},
			unix.SockFilter{Code: least, Jt: 1, K: firstNetfilter},
			allow,
			refuse(uint32(unix.EPERM)))
	}
	prog = append(prog,
		unix.SockFilter{Code: equal, Jt: 1, K: unix.SYS_SOCKET}, allow,
		unix.SockFilter{Code: load, K: offArg0})
	for _, f := range families {
		prog = append(prog, unix.SockFilter{Code: equal, Jf: 1, K: f}, allow)
	}
	return append(prog, refuse(uint32(unix.EPERM)))
}
