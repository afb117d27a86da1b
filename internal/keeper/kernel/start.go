package kernel

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// The names of the two programs, which are one file: their first argument, and their process names.
const (
	KeeperName = "longshore-keeper"
	NestName   = "longshore-nest"
)

// SetName sets the name that the kernel shows of this process. It would otherwise be that of the
// executed descriptor.
func SetName(name string) {
	fd, err := unix.Open("/proc/self/comm", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, _ = unix.Write(fd, []byte(name))
		_ = unix.Close(fd)
	}
}

// Inherit leaves a descriptor open in the next program that this process executes.
func Inherit(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) }

// NestFD is the descriptor of the socket to the nest when a keeper starts.
const NestFD = 3

// SmallEnv returns the environment of keeper (two processors: one forks while the
// other moves output) and nest (one). It keeps a Go program small without importing
// runtime/debug. containermaxprocs and updatemaxprocs keep the runtime from watching
// the cgroup's quota with descriptors of its own; for disablethp see HugePages.
func SmallEnv(processors int) []string {
	return append([]string{"GOGC=10", "GOMAXPROCS=" + Itoa(processors), "GODEBUG=containermaxprocs=0,updatemaxprocs=0,disablethp=1"}, weaken.Environ()...)
}

// Start runs a program as a child in a session of its own, with exactly the
// given descriptors, and returns its pid and a pidfd. Its environment is env,
// its directory /.
//
// It never sets a parent-death signal: that signal follows the forking thread, and a
// keeper that executes its next program ends all threads but one.
func Start(path string, args, env []string, fds []int) (pid, pidfd int, err error) {
	files := make([]uintptr, len(fds))
	for i, fd := range fds {
		files[i] = uintptr(fd)
	}
	return StartIn("/", path, args, &syscall.ProcAttr{Env: env, Files: files})
}

// StartIn is Start with a directory.
func StartIn(dir, path string, args []string, attr *syscall.ProcAttr) (pid, pidfd int, err error) {
	pidfd = -1
	attr.Dir = dir
	attr.Sys = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if attr.Env == nil {
		attr.Env = []string{}
	}
	pid, err = syscall.ForkExec(path, args, attr)
	if err == nil && pidfd < 0 {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	return pid, pidfd, err
}

// Unified is where the v2 tree of a hybrid node is mounted.
const Unified = "/sys/fs/cgroup/unified"

// WithoutUnified runs fn on a thread of its own in a fresh mount namespace where
// the v2 tree is not mounted. All other mounts keep their propagation. The
// thread ends with fn.
func WithoutUnified(fn func() error) error {
	done := make(chan error)
	go onFreshThread(fn, done)
	return <-done
}

func onFreshThread(fn func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// This goroutine holds the main thread, which must not change, so that the
		// next one gets another thread.
		inner := make(chan error)
		go onFreshThread(fn, inner)
		done <- <-inner
		runtime.UnlockOSThread()
		return
	}
	done <- hideUnified(fn)
	// The thread must not be used again: without unlocking, it ends with its goroutine.
}

func hideUnified(fn func() error) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	// Private, so that the unmount does not propagate to other mount namespaces.
	if err := unix.Mount("", "/sys/fs/cgroup", "", unix.MS_PRIVATE, ""); err != nil && err != unix.EINVAL {
		return err
	}
	if err := unix.Unmount(Unified, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	// Mount an empty file system there, which goes with the namespace: a runtime makes
	// its directories there in any case, and they must not stay.
	if err := unix.Mount("tmpfs", Unified, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,mode=755"); err != nil && err != unix.ENOENT {
		return err
	}
	return fn()
}
