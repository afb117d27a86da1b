package granted

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/weaken"
)

// maxFiles bounds the descriptors of a program without a limit in its spec.
const maxFiles = 4096

// hostname is the name that a program sees in place of the pod's.
const hostname = "localhost"

// spec returns the spec for the launch of a container: its program, arguments, user and limits, and
// nothing else of its own spec.
func (r *Runtime) spec(s *specs.Spec, resolved *grant.Resolved) *specs.Spec {
	names := []string{"argdata"}
	for _, d := range resolved.Descriptors {
		names = append(names, d.Name)
	}
	p := &specs.Process{
		Args: s.Process.Args, Cwd: "/", User: s.Process.User, NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{},
		// The program is process 1 of its own namespace.
		Env:     []string{"LISTEN_PID=1", "LISTEN_FDS=" + strconv.Itoa(len(names)), "LISTEN_FDNAMES=" + strings.Join(names, ":")},
		Rlimits: slices.Clip(s.Process.Rlimits), OOMScoreAdj: s.Process.OOMScoreAdj, ApparmorProfile: s.Process.ApparmorProfile, SelinuxLabel: s.Process.SelinuxLabel,
		Scheduler: s.Process.Scheduler, IOPriority: s.Process.IOPriority, ExecCPUAffinity: s.Process.ExecCPUAffinity,
	}
	if !hasLimit(p.Rlimits, "RLIMIT_NOFILE") {
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: maxFiles, Hard: maxFiles})
	}
	own := &specs.Spec{
		Version: s.Version, Hostname: hostname, Root: &specs.Root{Path: r.emptyRoot(), Readonly: true}, Process: p,
		Linux: &specs.Linux{
			CgroupsPath: s.Linux.CgroupsPath, Resources: s.Linux.Resources, UIDMappings: s.Linux.UIDMappings, GIDMappings: s.Linux.GIDMappings,
			Namespaces: namespaces(s, allOwn...), Seccomp: filters[3+len(names)](),
		},
	}
	if weaken.Off(weaken.GrantSeccomp) {
		own.Linux.Seccomp = nil
	}
	if weaken.Off(weaken.GrantNamespaces) {
		own.Root, own.Hostname, own.Linux.Namespaces = &specs.Root{Path: "rootfs", Readonly: true}, "", namespaces(s, specs.PIDNamespace)
	}
	return own
}

func hasLimit(limits []specs.POSIXRlimit, kind string) bool {
	for _, l := range limits {
		if l.Type == kind {
			return true
		}
	}
	return false
}

// allOwn are the namespaces that a program has for itself.
var allOwn = []specs.LinuxNamespaceType{ //nolint:gochecknoglobals // a constant
	specs.MountNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace, specs.CgroupNamespace,
}

// namespaces are the spec's, with a new one of each kind in own.
func namespaces(s *specs.Spec, own ...specs.LinuxNamespaceType) (all []specs.LinuxNamespace) {
	for _, n := range s.Linux.Namespaces {
		if !slices.Contains(own, n.Type) {
			all = append(all, n)
		}
	}
	for _, kind := range own {
		all = append(all, specs.LinuxNamespace{Type: kind})
	}
	return all
}

// calls are the system calls that need nothing but descriptors, memory and time.
var calls = []string{
	// memory and threads
	"brk", "mmap", "munmap", "mprotect", "mremap", "madvise", "mincore", "mlock", "munlock", "futex", "futex_waitv", "get_robust_list", "set_robust_list",
	"set_tid_address", "rseq", "membarrier", "sched_yield", "sched_getaffinity", "arch_prctl", "gettid", "getpid", "getppid", "getuid", "geteuid", "getgid",
	"getegid", "getgroups", "getresuid", "getresgid", "exit", "exit_group", "restart_syscall", "uname", "getrandom", "sysinfo", "getrusage", "times",
	// signals to itself
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait", "rt_sigsuspend", "sigaltstack", "pause",
	// time
	"nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "timer_create", "timer_settime", "timer_gettime", "timer_delete",
	"timer_getoverrun", "timerfd_create", "timerfd_settime", "timerfd_gettime", "setitimer", "getitimer", "alarm",
	// descriptors
	"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "lseek", "close", "close_range", "dup", "dup2", "dup3", "fcntl",
	"fstat", "fstatfs", "fsync", "fdatasync", "sync_file_range", "ftruncate", "fallocate", "fadvise64", "flock", "fchmod", "fchown", "readahead", "copy_file_range", "sendfile",
	"splice", "tee", "pipe", "pipe2", "eventfd2", "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_create", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
	// files below a descriptor
	"openat", "openat2", "newfstatat", "statx", "faccessat", "faccessat2", "readlinkat", "getdents64", "mkdirat", "unlinkat", "renameat", "renameat2", "linkat", "symlinkat",
	"utimensat", "fchmodat", "fchownat", "fchdir", "getcwd", "umask",
	// the same by a path, which never succeeds: languages' runtimes try these at their start
	"open", "stat", "lstat", "access", "readlink",
	// sockets that it has
	"accept", "accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown", "recvfrom", "recvmsg", "recvmmsg",
}

// Requests of ioctl that set a descriptor's modes.
const (
	fionbio  = 0x5421
	fionclex = 0x5450
	fioclex  = 0x5451
)

// filters has the allow-list for each number that the program's own file can have. Programs share
// them, so that each is compiled once.
var filters = func() (all [3 + core.MaxGiven]func() *specs.LinuxSeccomp) { //nolint:gochecknoglobals // a constant, made when it is needed
	for i := range all {
		all[i] = sync.OnceValue(func() *specs.LinuxSeccomp { return filter(i) })
	}
	return all
}()

// filter is the allow-list. program is the descriptor of the program.
func filter(program int) *specs.LinuxSeccomp {
	eperm, enosys := uint(unix.EPERM), uint(unix.ENOSYS)
	when := func(index uint, value uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
	}
	const thread = unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND
	const space = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	allow := func(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
	}
	list := []specs.LinuxSyscall{
		{Names: calls, Action: specs.ActAllow},
		// Threads of the program, and no other processes.
		allow("clone", specs.LinuxSeccompArg{Index: 0, Value: thread | space, ValueTwo: thread, Op: specs.OpMaskedEqual}),
		// The filter cannot see its flags. Programs try clone then.
		{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys},
		allow("execveat", when(0, uint64(program)), when(4, unix.AT_EMPTY_PATH)),
		allow("tgkill", when(0, 1)),
		allow("prlimit64", when(0, 0)),
		allow("prctl", when(0, unix.PR_SET_NAME)),
		allow("prctl", when(0, unix.PR_SET_VMA)),
	}
	// A listening socket that is shut down is an ordinary one, and MSG_FASTOPEN can then connect it
	// to any address.
	connected := func(flags uint) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: flags, Value: unix.MSG_FASTOPEN, ValueTwo: 0, Op: specs.OpMaskedEqual}
	}
	list = append(list, allow("sendto", connected(3)), allow("sendmsg", connected(2)), allow("sendmmsg", connected(3)))
	// Of ioctl only requests that get or set the mode of a descriptor.
	for _, request := range []uint64{unix.TIOCINQ, fionbio, fioclex, fionclex, unix.TCGETS, unix.TIOCGWINSZ} {
		list = append(list, allow("ioctl", when(1, request)))
	}
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64}, Syscalls: list,
	}
}
