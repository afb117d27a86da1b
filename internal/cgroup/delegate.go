package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// delegated is the cgroup that a container's processes may divide. A container with a cgroup namespace sees it as the
// root of the tree. Its own files of limits are the workload's to write: they can only be stricter than those of the
// cgroup above.
const delegated = "/delegated"

// Bounds of the cgroups that a workload can make in a delegated one. The depth keeps the longest path that consists of
// them shorter than the kernel's bound of a path, so that the agent can remove them.
const (
	maxDepth       = "12"
	maxDescendants = "4096"
)

// systemdName is the v1 hierarchy that systemd uses. It has no controllers.
const systemdName = "name=systemd"

// Delegating is a Tree with delegated cgroups. Small programs link a Tree only.
type Delegating struct{ *Tree }

// Writable returns an error if a container cannot have a writable tree of cgroups: that needs cgroup v2, mounted with
// nsdelegate.
func (d Delegating) Writable() error {
	if d.layout.mode != core.CgroupV2 {
		return fmt.Errorf("writable cgroups need cgroup v2, this node has %s: %w", d.layout.mode, errdefs.ErrFailedPrecondition)
	}
	if !d.layout.nsDelegate {
		return fmt.Errorf("writable cgroups need nsdelegate: mount -o remount,nsdelegate %s, then restart the agent: %w", d.layout.unified, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Place returns an error if the name is a delegated cgroup's and this node cannot let processes divide it.
func (d Delegating) Place(parent core.Cgroup, above core.CgroupRef, name string) (core.CgroupRef, error) {
	ref, err := d.Tree.Place(parent, above, name)
	l := d.layout
	if err == nil && ref.Delegated() && l.mode != core.CgroupV2 && !slices.ContainsFunc(l.v1, func(h hierarchy) bool { return h.has(systemdName) }) {
		err = fmt.Errorf("place cgroup %s: delegation needs cgroup v2, or the v1 hierarchy of systemd: mount -t cgroup -o none,%s systemd /sys/fs/cgroup/systemd: %w", name, systemdName, errdefs.ErrFailedPrecondition)
	}
	return ref, err
}

// Create makes also the cgroup below a delegated one on v2, and bounds those that the workload makes.
func (d Delegating) Create(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	err := d.Tree.Create(ctx, ref, res)
	if err != nil || !ref.Delegated() || d.layout.mode != core.CgroupV2 {
		return err
	}
	dir := d.layout.v2Dir(ref)
	err = writeFile(filepath.Join(dir, "cgroup.max.depth"), maxDepth)
	if err == nil {
		err = writeFile(filepath.Join(dir, "cgroup.max.descendants"), maxDescendants)
	}
	if err == nil {
		_, err = d.makeV2(ref.Path + delegated)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create cgroup %s: %w", ref.Path, err), d.Remove(context.WithoutCancel(ctx), ref))
	}
	return nil
}

// Dirs returns for a process in a delegated cgroup on v2 the directory of the one below it.
func (d Delegating) Dirs(ref core.CgroupRef) (v1 []string, unified string, own map[string]string) {
	v1, unified, own = d.Tree.Dirs(ref)
	if unified != "" && ref.Delegated() {
		unified += delegated
		own[""] = unified
	}
	return v1, unified, own
}

// ProcessDir returns the directory in the v2 tree for a further process beside the process pid: pid's own one if ref is
// delegated, because a cgroup that has been divided takes no processes. It is "" where Dirs returns none.
func (d Delegating) ProcessDir(ref core.CgroupRef, pid int) string {
	_, unified, _ := d.Dirs(ref)
	if unified == "" || !ref.Delegated() {
		return unified
	}
	text, _ := readShort("/proc/" + strconv.Itoa(pid) + "/cgroup")
	_, own, _ := strings.Cut(text, "0::") // the only line, or the last one
	own, _, _ = strings.Cut(own, "\n")
	if dir := filepath.Join(d.layout.unified, own); strings.HasPrefix(dir, unified+"/") {
		return dir
	}
	return unified
}

// Remove also removes cgroups that a workload has nested deeper than the longest path.
func (d Delegating) Remove(ctx context.Context, ref core.CgroupRef) error {
	err := d.Tree.Remove(ctx, ref)
	if !errors.Is(err, unix.ENAMETOOLONG) {
		return err
	}
	for _, dir := range d.layout.owned(ref) {
		if err := removeBelow(ctx, dir); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", ref.Path, err)
		}
	}
	return d.Tree.Remove(ctx, ref)
}

// settle calls remove until it succeeds. A process that has just been reaped is in its cgroup for another moment.
func settle(ctx context.Context, dir string, remove func() error) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		last = remove()
		if errors.Is(last, unix.EBUSY) {
			return false, nil
		}
		return last == nil, last
	})
	if errors.Is(last, unix.EBUSY) {
		pids, _ := pidsBelow(dir)
		return fmt.Errorf("%s has processes %v: %w: %w", dir, pids, last, errdefs.ErrFailedPrecondition)
	}
	return err
}

// removeBelow removes all directories below dir. Workloads can nest cgroups deeper than the longest path, so it uses
// descriptors to go down and up. One descriptor is open at a time.
func removeBelow(ctx context.Context, dir string) error {
	at, err := openDir(unix.AT_FDCWD, dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	move := func(to string) error {
		next, err := openDir(int(at.Fd()), to)
		if err == nil {
			_ = at.Close()
			at = next
		}
		return err
	}
	var names []string // from dir to at
	for {
		full, err := removeEmpty(at)
		if err == nil && full != "" {
			names = append(names, full)
			err = move(full)
		} else if err == nil {
			if len(names) == 0 {
				return nil
			}
			last := names[len(names)-1]
			names = names[:len(names)-1]
			if err = move(".."); err == nil {
				err = settle(ctx, dir, func() error { return rmdirAt(int(at.Fd()), last) })
			}
		}
		if err != nil {
			return err
		}
	}
}

// removeEmpty removes the directories in dir that are empty, and returns the name of one that is not.
func removeEmpty(dir *os.File) (full string, err error) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.IsDir() && rmdirAt(int(dir.Fd()), e.Name()) != nil {
			full = e.Name()
		}
	}
	return full, nil
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func rmdirAt(at int, name string) error {
	err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: name, Err: err}
}
