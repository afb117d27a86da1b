package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

const (
	// recheck is how often a state is read again that raises no event
	recheck = time.Millisecond
	// patience is how long a freeze may take before kill continues without it, and how long remove
	// waits for dying processes.
	patience = 2 * time.Second
)

// Pids returns the processes in and below ref, in ascending order.
func (t *Tree) Pids(_ context.Context, ref core.CgroupRef) ([]int, error) {
	if err := t.valid(ref); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	dir := t.memberDir(ref)
	if dir == "" || !exists(dir) {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	pids, err := pidsBelow(dir)
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", ref.Path, err)
	}
	return pids, nil
}

// memberDir returns the directory that lists ref's processes: on v1, that of a
// controller which every runtime joins.
func (t *Tree) memberDir(ref core.CgroupRef) string {
	if t.layout.mode == core.CgroupV2 {
		return t.layout.v2Dir(ref)
	}
	for _, c := range []string{"freezer", "pids", "memory", "cpu", "cpuacct", "cpuset", "devices", "blkio"} {
		if dir, ok := t.layout.v1Dir(ref, c); ok {
			return dir
		}
	}
	return ""
}

// pidsBelow returns the processes in dir and below.
func pidsBelow(dir string) ([]int, error) { return (*stats.Kept)(nil).Pids(dir) }

// Kill sends SIGKILL to all processes in and below ref, including those forked
// meanwhile, and returns once none of them runs. It succeeds if ref is empty or does not
// exist.
func (t *Tree) Kill(ctx context.Context, ref core.CgroupRef) error {
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	dir := t.memberDir(ref)
	if dir == "" {
		return fmt.Errorf("kill cgroup %s: no hierarchy tells its processes: %w", ref.Path, errdefs.ErrFailedPrecondition)
	}
	var err error
	if t.layout.mode == core.CgroupV2 {
		err = killV2(ctx, dir)
	} else {
		err = killByPid(ctx, dir, func(frozen bool) error {
			if frozen {
				return t.freezeV1(ctx, ref, true)
			}
			freezer, _ := t.layout.v1Dir(ref, "freezer")
			return thawAll(freezer, "freezer.state", "THAWED")
		})
	}
	if err != nil {
		return fmt.Errorf("kill cgroup %s: %w", dir, err)
	}
	return nil
}

func killV2(ctx context.Context, dir string) error {
	err := writeFile(filepath.Join(dir, "cgroup.kill"), "1")
	if errors.Is(err, os.ErrNotExist) { // no cgroup, or a kernel before 5.14
		if !exists(dir) {
			return nil
		}
		return killByPid(ctx, dir, func(frozen bool) error {
			if frozen {
				return freezeV2(ctx, dir, true)
			}
			return thawAll(dir, "cgroup.freeze", "0")
		})
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return await(ctx, filepath.Join(dir, "cgroup.events"), "populated 0")
}

// killByPid freezes the cgroup, so that nothing can fork away, kills all processes, and
// thaws it, so that they can die. It waits for their end, and repeats that until none is
// left.
func killByPid(ctx context.Context, dir string, freeze func(bool) error) error {
	for {
		pids, err := pidsBelow(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		// A process that does not freeze, because it waits in the kernel, cannot fork
		// either; one that does fork is killed in the next round.
		frozen := freeze(true)
		if now, err := pidsBelow(dir); err == nil {
			pids = now
		}
		fds := make([]unix.PollFd, 0, len(pids))
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // it has ended
			}
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		thawed := freeze(false)
		err = waitAll(ctx, fds)
		for _, f := range fds {
			_ = unix.Close(int(f.Fd))
		}
		if err != nil {
			return errors.Join(err, frozen, thawed)
		}
	}
}

// waitAll returns once each process has ended; it may still be a zombie.
func waitAll(ctx context.Context, fds []unix.PollFd) error {
	for i := range fds {
		for {
			n, err := unix.Poll(fds[i:i+1], 50)
			if n > 0 {
				break
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// Freeze freezes or thaws all processes in and below ref, and returns once the kernel
// has done so.
func (t *Tree) Freeze(ctx context.Context, ref core.CgroupRef, frozen bool) error {
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("freeze cgroup: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if t.layout.mode == core.CgroupV2 {
		err = freezeV2(ctx, t.layout.v2Dir(ref), frozen)
	} else {
		err = t.freezeV1(ctx, ref, frozen)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil && frozen {
		// Undo it: a half-frozen cgroup is useless.
		err = errors.Join(err, t.thaw(context.WithoutCancel(ctx), ref))
	}
	if err != nil {
		return fmt.Errorf("freeze cgroup %s: %w", ref.Path, err)
	}
	return nil
}

func (t *Tree) thaw(ctx context.Context, ref core.CgroupRef) error {
	var err error
	if t.layout.mode == core.CgroupV2 {
		err = freezeV2(ctx, t.layout.v2Dir(ref), false)
	} else {
		err = t.freezeV1(ctx, ref, false)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func freezeV2(ctx context.Context, dir string, frozen bool) error {
	value := "0"
	if frozen {
		value = "1"
	}
	if err := writeFile(filepath.Join(dir, "cgroup.freeze"), value); err != nil {
		return err
	}
	if !frozen {
		return nil
	}
	return await(ctx, filepath.Join(dir, "cgroup.events"), "frozen "+value)
}

func (t *Tree) freezeV1(ctx context.Context, ref core.CgroupRef, frozen bool) error {
	dir, ok := t.layout.v1Dir(ref, "freezer")
	if !ok {
		return fmt.Errorf("this node has no freezer: %w", errdefs.ErrFailedPrecondition)
	}
	path, want := filepath.Join(dir, "freezer.state"), "THAWED"
	if frozen {
		want = "FROZEN"
	}
	if err := writeFile(path, want); err != nil {
		return err
	}
	if !frozen {
		return nil
	}
	// The freezer raises no event when it is done; reading the state makes it check. Writing the
	// state again also freezes processes that were forked meanwhile.
	return poll(ctx, func() (bool, error) {
		s, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(s)) == want {
			return err == nil, err
		}
		return false, writeFile(path, want)
	})
}

// thawAll thaws dir and all cgroups below it, because a frozen process does not die.
func thawAll(dir, file, value string) error {
	if dir == "" {
		return nil
	}
	err := writeFile(filepath.Join(dir, file), value)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	children, lerr := subdirs(dir)
	errs := []error{err, lerr}
	for _, c := range children {
		errs = append(errs, thawAll(filepath.Join(dir, c), file, value))
	}
	return errors.Join(errs...)
}

// poll calls done every recheck, until it returns true or patience is over.
func poll(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// await returns once the file, which raises POLLPRI when it changes, has the line want,
// or does not exist.
func await(ctx context.Context, path, want string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
	buf := make([]byte, 256)
	for {
		n, err := f.ReadAt(buf, 0)
		if errors.Is(err, unix.ENODEV) {
			return nil
		}
		if n == 0 && err != nil {
			return err
		}
		if slices.Contains(strings.Split(string(buf[:n]), "\n"), want) {
			return nil
		}
		if _, err := unix.Poll(fds, 50); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
