package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// delegatedFiles are those of a cgroup that its processes need to make cgroups and to move processes.
var delegatedFiles = []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} //nolint:gochecknoglobals // constant

// delegatedFilesV1 are the same of a cgroup in systemd's hierarchy of v1.
var delegatedFilesV1 = []string{".", "cgroup.procs", "tasks"} //nolint:gochecknoglobals // constant

// systemdHierarchy is the name of that hierarchy's directory.
const systemdHierarchy = "systemd"

// makeCgroup makes a container's cgroup, unless it exists, and gives one that the container may divide to the root user
// of its user namespace.
func (r *Runtime) makeCgroup(ctx context.Context, c core.RuntimeCreate) error {
	if !c.Limited {
		if err := r.o.Cgroups.Create(ctx, c.Cgroup, c.Spec.Linux.Resources); err != nil {
			return err
		}
	}
	_, dir, own := r.o.Cgroups.Dirs(c.Cgroup)
	files := delegatedFiles
	if dir == "" || len(r.o.Host.Hierarchies) > 0 { // systemd's own hierarchy of v1
		dir, files = own[systemdHierarchy], delegatedFilesV1
	}
	if !c.Cgroup.Delegated() || dir == "" {
		return nil
	}
	uid, ok := hostID(c.Spec.Linux.UIDMappings)
	gid, mapped := hostID(c.Spec.Linux.GIDMappings)
	if !ok || !mapped {
		return nil
	}
	for _, name := range files {
		if err := os.Lchown(filepath.Join(dir, name), uid, gid); err != nil {
			return fmt.Errorf("owner of cgroup %s: %w", c.Cgroup.Path, err)
		}
	}
	return nil
}

// hostID returns the host's id of a user namespace's root.
func hostID(maps []specs.LinuxIDMapping) (int, bool) {
	for _, m := range maps {
		if m.ContainerID == 0 && m.Size > 0 {
			return int(m.HostID), true
		}
	}
	return 0, false
}
