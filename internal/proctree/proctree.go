// Package proctree ends a process together with what it has started.
//
// It knows processes by what /proc tells of them, and nothing of containers: who
// calls names the pids that may be meant. Start reading at Kill.
package proctree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// rounds bounds how often Kill looks for what was forked meanwhile.
	rounds = 10
	// patience is how long a killed process may take to end, milliseconds.
	patience = 5000
)

// Session returns the session of a process that was just started, if no other
// process can be in it than what this one starts: it leads the session, or who led
// it has gone, as a runtime's command has. 0: there are others.
func Session(pid int) int {
	st, err := read(pid)
	if err != nil {
		return pid // it has ended already
	}
	if st.session != pid {
		if _, err := read(st.session); err == nil {
			return 0
		}
	}
	return st.session
}

// All lists the processes there are.
func All() (pids []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Kill ends what the process main has started, and stops main itself, which is
// left for the caller to kill, so that it starts no more: its descendants, and
// those of its Session, as far as list names them, the processes of its container.
// What has left both, by a session of its own after its parent's end, is not told
// from others and stays. What was killed has ended when it returns.
func Kill(main, session int, list func() ([]int, error)) error {
	return kill(main, session, list, func(map[int]stat) bool { return true })
}

// Orphans ends what a process has left that ended at the given time: those of its
// Session, and their descendants, as far as list names them. It must have been
// reaped. The session's number may be another's by now, and then nothing is ended:
// the session is known by a process in it that is as old as the one that ended.
func Orphans(session int, ended time.Time, list func() ([]int, error)) error {
	last, err := ticks(ended)
	if err != nil {
		return fmt.Errorf("end what is left of session %d: %w", session, err)
	}
	known := false
	return kill(0, session, list, func(all map[int]stat) bool {
		known = known || proven(session, last, all)
		return known
	})
}

// proven reports whether the processes of a session among all are those of the
// session that had this number at the time last. A pid is not given away while a
// session has its number, so that one process of that session, which lived before
// all were looked at and lives still, vouches for the rest.
func proven(session int, last uint64, all map[int]stat) bool {
	if _, err := read(session); err == nil {
		return false // the number is another's
	}
	for pid, st := range all {
		if st.session != session || st.started > last {
			continue
		}
		if now, err := read(pid); err == nil && now.started == st.started {
			return true
		}
	}
	return false
}

// ticks is a time as /proc tells when a process started: in hundredths of a
// second since the machine's boot.
func ticks(at time.Time) (uint64, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	since := time.Duration(boot.Nano()) - time.Since(at)
	return uint64(max(since, 0) / (10 * time.Millisecond)), nil
}

// kill ends main's kin round by round, while sure says that it is.
func kill(main, session int, list func() ([]int, error), sure func(map[int]stat) bool) error {
	killed := map[int]bool{}
	for range rounds {
		pids, err := list()
		if err != nil {
			return fmt.Errorf("end session %d: %w", session, err)
		}
		all := make(map[int]stat, len(pids))
		for _, pid := range pids {
			if st, err := read(pid); err == nil {
				all[pid] = st
			}
		}
		if !sure(all) {
			return nil
		}
		fresh := false
		for _, pid := range of(main, session, all, killed) {
			if !killed[pid] {
				fresh = true
				killed[pid] = true
			}
			if err := end(pid, all[pid], pid == main); err != nil {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
		if !fresh {
			return nil
		}
	}
	return nil
}

// of names main and its kin among all, parents before their children. A parent
// in killed counts as well, though it may be gone.
func of(main, session int, all map[int]stat, killed map[int]bool) []int {
	var found []int
	mine := map[int]bool{}
	if main > 0 {
		mine[main] = true // it may be gone, and its children not know yet
	}
	for pid := range killed {
		mine[pid] = true
	}
	for grew := true; grew; {
		grew = false
		for pid, st := range all {
			if slices.Contains(found, pid) || st.state == 'Z' {
				continue
			}
			if pid == main || mine[st.parent] || session > 0 && st.session == session {
				found, mine[pid], grew = append(found, pid), true, true
			}
		}
	}
	return found
}

// stat is what /proc/PID/stat says.
type stat struct {
	state           byte
	parent, session int
	started         uint64 // tells a process from another one of the same pid
}

func read(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parse(b)
}

var errStat = errors.New("not a process's stat")

// parse reads the fields after the command's name, which may hold anything.
func parse(b []byte) (stat, error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errStat
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	started, err3 := strconv.ParseUint(string(f[19]), 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return stat{}, errStat
	}
	return stat{f[0][0], parent, session, started}, nil
}

// end kills a process if it is still the one that was looked at, and waits for
// its end; or it only stops it.
func end(pid int, seen stat, stop bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := read(pid); err != nil || now.started != seen.started {
		return nil // it has ended
	}
	sig := unix.SIGKILL
	if stop {
		sig = unix.SIGSTOP
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil || stop {
		return ignoreGone(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("it did not end: %w", context.DeadlineExceeded)
		default:
			return nil
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
