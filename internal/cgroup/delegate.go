package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// delegated is the cgroup that a container's processes may divide. A container with a cgroup namespace sees it as the
// root of the tree. Its own files of limits are the workload's to write: they can only be stricter than those of the
// cgroup above.
const delegated = "delegated"

// Bounds of the cgroups that a workload can make in a delegated one. The depth keeps the longest path that consists of
// them shorter than the kernel's bound of a path, so that the agent can remove them.
const (
	maxDepth       = "12"
	maxDescendants = "4096"
)

// systemdName is the v1 hierarchy that systemd uses. It has no controllers.
const systemdName = "name=systemd"

// mayDelegate returns an error if this node cannot let processes divide their cgroup.
func (t *Tree) mayDelegate(parent core.Cgroup) error {
	switch {
	case len(parent.Adopt) > 0:
		return fmt.Errorf("another program's cgroup cannot be delegated: %w", errdefs.ErrInvalidArgument)
	case t.layout.mode != core.CgroupV2 && !slices.ContainsFunc(t.layout.v1, func(h hierarchy) bool { return h.has(systemdName) }):
		return fmt.Errorf("delegation needs cgroup v2, or the v1 hierarchy of systemd: mount -t cgroup -o none,%s systemd /sys/fs/cgroup/systemd: %w", systemdName, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// makeDelegated makes the cgroup below ref's v2 directory, and bounds the ones that the workload makes.
func (t *Tree) makeDelegated(ref core.CgroupRef) error {
	dir := t.layout.v2Dir(ref)
	err := writeFile(filepath.Join(dir, "cgroup.max.depth"), maxDepth)
	if err == nil {
		err = writeFile(filepath.Join(dir, "cgroup.max.descendants"), maxDescendants)
	}
	if err == nil {
		_, err = t.makeV2(ref.Path + "/" + delegated)
	}
	return err
}

// ProcessDir returns the directory in the v2 tree for a further process beside the process pid: pid's own one if ref is
// delegated, because a cgroup that has been divided takes no processes. It is "" where Dirs returns none.
func (t *Tree) ProcessDir(ref core.CgroupRef, pid int) string {
	_, unified, _ := t.Dirs(ref)
	if !ref.Delegated || unified == "" {
		return unified
	}
	text, _ := readShort("/proc/" + strconv.Itoa(pid) + "/cgroup")
	_, own, _ := strings.Cut(text, "0::") // the only line, or the last one
	own, _, _ = strings.Cut(own, "\n")
	if dir := filepath.Join(t.layout.unified, own); strings.HasPrefix(dir, unified+"/") {
		return dir
	}
	return unified
}
