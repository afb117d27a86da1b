package attack

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// watcher inspects every process that appears.
type watcher struct {
	secret string
	seize  bool
	seen   map[int]bool
	looked int
	held   int
}

// watch looks until the file stop exists in a directory. Its arguments are a file of the
// host, the directory, and whether to take over the processes it sees.
func watch(args []string) result {
	if len(args) != 3 {
		return is(unmade, "three arguments are wanted")
	}
	runtime.LockOSThread() // ptrace demands that one thread does it all
	w := &watcher{secret: args[0], seize: args[2] == "seize", seen: map[int]bool{}}
	w.look() // skip the processes that exist already
	w.looked = 0
	if err := os.WriteFile(args[1]+"/ready", nil, 0o600); err != nil {
		return is(unmade, "%v", err)
	}
	for {
		if r := w.look(); r.Outcome == reached {
			return r
		}
		if _, err := os.Stat(args[1] + "/stop"); err == nil {
			break
		}
	}
	if w.looked == 0 {
		return is(unmade, "nobody appeared")
	}
	return is(refused, "%d processes appeared, %d were seized: none showed the host's files", w.looked, w.held)
}

func (w *watcher) look() result {
	dir, err := os.Open("/proc")
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return is(unmade, "%v", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || w.seen[pid] || pid == os.Getpid() {
			continue
		}
		w.seen[pid] = true
		w.looked++
		if r := w.at(pid); r.Outcome == reached {
			return r
		}
	}
	return result{}
}

// at inspects a process from its first moment until its program runs.
func (w *watcher) at(pid int) result {
	if w.seize {
		if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); e == 0 {
			_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(pid), 0, 0, 0, 0)
			w.held++
			defer func() {
				var ws unix.WaitStatus
				for {
					_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
					if !errors.Is(err, unix.EINTR) {
						break
					}
				}
				_ = unix.PtraceDetach(pid)
			}()
		}
	}
	proc := "/proc/" + strconv.Itoa(pid)
	for range 50 {
		if b, err := os.ReadFile(proc + "/mountinfo"); err == nil && mountsBelow(string(b), filepath.Dir(w.secret)) {
			return is(reached, "process %d is among the host's mounts", pid)
		}
		for _, way := range []string{"/root", "/cwd"} {
			if _, err := os.Stat(proc + way + w.secret); err == nil {
				return is(reached, "process %d leads to the host's files", pid)
			}
		}
		if w.seize {
			break // it has stopped
		}
	}
	return result{}
}

// mountsBelow reports whether anything is mounted at a directory or below it.
func mountsBelow(mountinfo, dir string) bool {
	for line := range strings.Lines(mountinfo) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			return true
		}
	}
	return false
}
