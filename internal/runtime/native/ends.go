package native

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// killTime is how long the main process may take to end after another process of its cgroup was killed.
const killTime = 500 * time.Millisecond

// ends reports whether a container's main process has ended or is on its way there. Its namespaces
// take no further processes then, and kill those that are in them. With killed, which says that a
// process in the container was, it waits for that: a kill of the whole cgroup reaches one process
// after the other.
func (r *Runtime) ends(ctx context.Context, id core.ID, killed bool) bool {
	all, err := r.o.Supervisor.Processes(ctx)
	if err != nil {
		return false
	}
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			return !p.Running || exiting(p.Pid) || killed && endsWithin(p.Pid, killTime)
		}
	}
	return true
}

// endsWithin waits for the end of a process.
func endsWithin(pid int, limit time.Duration) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer func() { _ = unix.Close(fd) }()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll(p, int(max(0, time.Until(end)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// exiting reports whether a process is gone, a zombie, or in the middle of its exit. The kernel sets
// the flag before it takes anything of the process away.
func exiting(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return os.IsNotExist(err)
	}
	return exitingIn(stat)
}

// The fields of /proc/PID/stat after the name, and the flag PF_EXITING.
const (
	statState = 0
	statFlags = 6
	pfExiting = 0x4
)

func exitingIn(stat []byte) bool {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) <= statFlags {
		return false
	}
	flags, err := strconv.ParseUint(string(f[statFlags]), 10, 64)
	return err == nil && (flags&pfExiting != 0 || f[statState][0] == 'Z' || f[statState][0] == 'X')
}
