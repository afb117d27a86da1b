package native

import (
	"bytes"
	"context"
	"os"
	"strconv"

	"github.com/longshore/longshore/internal/core"
)

// ends reports whether a container's main process has ended or is on its way there. Its namespaces
// take no further processes then, and kill those that are in them.
func (r *Runtime) ends(ctx context.Context, id core.ID) bool {
	all, err := r.o.Supervisor.Processes(ctx)
	if err != nil {
		return false
	}
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			return !p.Running || exiting(p.Pid)
		}
	}
	return true
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
