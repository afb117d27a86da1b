package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// Reap reaps inherited processes, until ctx ends.
//
// A process that this one has started, and waits for, is left to its waiter. Go's package os holds
// a pidfd of each child from before it runs until it has been waited for, so a child has a waiter
// exactly if this process has a pidfd of it: starters need not register children.
func Reap(ctx context.Context, log *slog.Logger) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		if err := reapInherited(); err != nil {
			log.WarnContext(ctx, "could not reap processes; will retry when the next one ends", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
	}
}

// reapInherited reaps all that have ended.
func reapInherited() error {
	for {
		ended, err := kernel.Peek(0, false)
		if errors.Is(err, unix.ECHILD) || err == nil && ended.Pid == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for ended processes: %w", err)
		}
		gone, err := reapUnlessWaitedFor(ended.Pid)
		if err != nil {
			return err
		}
		if !gone {
			break
		}
	}
	// The kernel keeps telling the child that its waiter has not taken yet: look for
	// the others.
	all, err := endedChildren()
	for _, pid := range all {
		if _, rerr := reapUnlessWaitedFor(pid); rerr != nil {
			err = rerr
		}
	}
	return err
}

// reapUnlessWaitedFor reaps a child that has ended, unless this process has a pidfd of it. If its
// waiter reaps the child meanwhile, the number may become another's at any time, so the child is
// reaped by a pidfd of our own, opened before the search of the others.
func reapUnlessWaitedFor(pid int) (gone bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true, nil // its waiter has taken it
	}
	defer func() { _ = unix.Close(fd) }()
	others, err := pidfds(pid, fd)
	if err != nil || others {
		return false, err
	}
	if err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil); err != nil && err != unix.ECHILD {
		return false, fmt.Errorf("reap %d: %w", pid, err)
	}
	return true, nil
}

// pidfds reports whether this process has a pidfd of pid besides own.
func pidfds(pid, own int) (bool, error) {
	const dir = "/proc/self/fdinfo"
	list, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("look for pidfds: %w", err)
	}
	want := []byte("\nPid:\t" + strconv.Itoa(pid) + "\n")
	for _, e := range list {
		if e.Name() == strconv.Itoa(own) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil && bytes.Contains(b, want) { // one that cannot be read was closed meanwhile
			return true, nil
		}
	}
	return false, nil
}

// endedChildren lists this process's children that have ended.
func endedChildren() (pids []int, err error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	self := os.Getpid()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it is gone
		}
		if state, parent := stateOf(b); state == 'Z' && parent == self {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// stateOf returns the state and the parent that a /proc/PID/stat tells; zeros when it is
// malformed.
func stateOf(stat []byte) (state byte, parent int) {
	end := bytes.LastIndexByte(stat, ')') // the name may have any bytes
	if end < 0 {
		return 0, 0
	}
	f := bytes.Fields(stat[end+1:])
	if len(f) < 2 || len(f[0]) != 1 {
		return 0, 0
	}
	parent, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return 0, 0
	}
	return f[0][0], parent
}
