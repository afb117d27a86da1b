package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/control"
)

// inotifyFinding tries whether uid 0 may have one more inotify instance. All programs with uid 0
// share them, also those in containers, and the kernel counts a user namespace for its maker, too.
func inotifyFinding() control.Finding {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
		return ok("inotify", "uid 0 may have more instances")
	}
	const then = "`logs -f`, `attach` and the ends of FIFO logs poll five times a second meanwhile"
	pid, n := mostInotifies()
	if pid == 0 {
		return warn("inotify", "raise fs.inotify.max_user_instances", "uid 0 gets no instance: %v; %s", err, then)
	}
	what, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may have ended
	return warn("inotify", fmt.Sprintf("stop that program, or raise fs.inotify.max_user_instances; `cat /proc/%d/cgroup` names the container", pid),
		"uid 0 gets no instance: %v; process %d, %.15q, has most of them, %d; %s", err, pid, string(what), n, then)
}

// mostInotifies returns the process with the most inotify instances, and their number.
func mostInotifies() (pid, most int) {
	procs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, dir := range procs {
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it has ended
		}
		n := 0
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "anon_inode:inotify" {
				n++
			}
		}
		if n > most {
			most = n
			_, _ = fmt.Sscanf(filepath.Base(dir), "%d", &pid)
		}
	}
	return pid, most
}
