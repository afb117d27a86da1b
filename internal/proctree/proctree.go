// Package proctree ends a process together with the processes it has started.
//
// It finds processes in /proc and knows nothing of containers: the caller passes the
// pids that may be killed. Start reading at Kill.
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
	// rounds bounds how often Kill looks for processes that were forked meanwhile.
	rounds = 10
	// patience is how long a killed process may take to end, in milliseconds
	patience = 5000
)

// Session returns the session of a process that was just started, if only its own
// descendants can be in that session: the process leads it, or the leader has ended, as
// a runtime's command has. It returns 0 if other processes may be in it.
func Session(pid int) int {
	st, err := read(pid)
	if err != nil {
		return pid // it has ended
	}
	if st.session != pid {
		if _, err := read(st.session); err == nil {
			return 0
		}
	}
	return st.session
}

// All returns all processes.
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

// Kill kills the processes that main has started, and stops main itself, so that it
// starts no more; the caller kills main. These are main's descendants and the members of
// its session, as far as list returns them, which should be the processes of its
// container. A process that made a session of its own and whose parent has ended is not
// found, and stays. The killed processes have ended when Kill returns.
func Kill(main, session int, list func() ([]int, error)) error {
	return kill(main, session, list, func(map[int]stat) bool { return true })
}

// Orphans kills what a process has left that ended at the given time: the members of its
// session and their descendants, as far as list returns them. The process must have been
// reaped. The session's number may have been reused since, and then nothing is killed:
// the session counts as the same if a process in it is older than the end of the first
// process.
func Orphans(session int, ended time.Time, list func() ([]int, error)) error {
	last, err := ticks(ended)
	if err != nil {
		return fmt.Errorf("end the remaining processes of session %d: %w", session, err)
	}
	known := false
	return kill(0, session, list, func(all map[int]stat) bool {
		known = known || proven(session, last, all)
		return known
	})
}

// proven reports whether the processes of a session among all belong to the session that
// had this number at the time last. A pid is not reused while a session has its number.
// So one process of that session that was alive before that time, and still is, proves
// it for all.
func proven(session int, last uint64, all map[int]stat) bool {
	if _, err := read(session); err == nil {
		return false // the number has been reused
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

// ticks converts a time to hundredths of a second since boot, which is how /proc gives a
// process's start.
func ticks(at time.Time) (uint64, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	since := time.Duration(boot.Nano()) - time.Since(at)
	return uint64(max(since, 0) / (10 * time.Millisecond)), nil
}

// kill kills main's process tree round by round, as long as sure allows it.
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

// of returns main and its process tree among all, parents before their children. The
// children of a process in killed belong to it, even if that process is gone.
func of(main, session int, all map[int]stat, killed map[int]bool) []int {
	var found []int
	mine := map[int]bool{}
	if main > 0 {
		mine[main] = true // it may have ended, and its children still name it as their parent
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

// stat is the content of /proc/PID/stat.
type stat struct {
	state           byte
	parent, session int
	started         uint64 // distinguishes a process from a later one with the same pid
}

func read(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parse(b)
}

var errStat = errors.New("cannot parse /proc/PID/stat")

// parse reads the fields after the command's name, which may contain anything.
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

// end kills, or only stops, a process if it is still the one that was looked at. It
// waits for the end of a killed process.
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
