package compile

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// startsFromBase reports whether the container can start from the base namespace instead
// of a copy of the host's mounts. It cannot if a path of the host is needed after the
// copies of the bind sources are taken, or if mounts must follow later changes on the
// host.
func (in *Input) startsFromBase() bool {
	return in.needsNoHostMounts() && !slices.ContainsFunc(in.Spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.UserNamespace || ns.Type == specs.TimeNamespace
	})
}

// needsNoHostMounts reports whether the container can be built without the host's mounts, once its root and the sources of its binds
// are copied.
func (in *Input) needsNoHostMounts() bool {
	s := in.Spec
	switch s.Linux.RootfsPropagation {
	case "", "slave", "rslave", "private", "rprivate":
	default:
		return false
	}
	cgroupns, mnt := false, false
	for _, ns := range s.Linux.Namespaces {
		switch ns.Type {
		case specs.MountNamespace:
			mnt = ns.Path == ""
		case specs.CgroupNamespace:
			cgroupns = ns.Path == ""
		}
	}
	own := 0
	for _, m := range s.Mounts {
		if isCgroup(m) && !cgroupns {
			own++
		}
	}
	return own < 2 && in.Host.BaseNamespace != "" && mnt && !in.stops() && !in.Host.Initramfs && (s.Linux.Seccomp == nil || s.Linux.Seccomp.ListenerPath == "")
}

func isCgroup(m specs.Mount) bool { return m.Type == "cgroup" || m.Type == "cgroup2" }

// shares reports whether mounts that are the same and read-only in all containers may be
// one shared mount. They may not if the container could make it writable, or if its file
// systems have a label.
func (in *Input) shares() bool {
	p := in.Spec.Process
	return in.startsFromBase() && in.Spec.Linux.MountLabel == "" &&
		(p.Capabilities == nil || !slices.Contains(p.Capabilities.Bounding, "CAP_SYS_ADMIN"))
}

// enterBaseNamespace copies the root and the binds' sources and takes them into a copy of the base
// namespace, which becomes the container's mount namespace.
func (r *rootfs) enterBaseNamespace() error {
	empty := plan.P(r.plan.String(""))
	root, _ := r.open("open tree of the root", unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(r.in.Root)),
		plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	makeSlave(r.draft, "the root", root)
	r.sources = map[int]int{}
	for i, m := range r.in.Spec.Mounts {
		o := ocispec.ParseMountOptions(m.Options)
		if !isBind(m, o) {
			continue
		}
		src, _, err := r.source(m, o)
		if err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		makeSlave(r.draft, m.Source, src)
		r.sources[i] = src
	}
	if slices.ContainsFunc(r.in.Spec.Mounts, isCgroup) && !r.has(specs.CgroupNamespace) {
		r.takeCgroups()
	}
	copyBaseNamespace(r.draft)
	r.plan.Add("mount the root", unix.SYS_MOVE_MOUNT, plan.V(root), empty, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(basens.Root)), plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	return nil
}

// copyBaseNamespace moves the process into a copy of the base namespace.
func copyBaseNamespace(d *draft) {
	ns, _ := d.open("open the empty mount namespace", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(d.plan.String(d.in.Host.BaseNamespace)), plan.V(unix.O_RDONLY|unix.O_CLOEXEC))
	d.plan.Add("join the empty mount namespace", unix.SYS_SETNS, plan.V(ns), plan.V(unix.CLONE_NEWNS))
	d.closeLast(ns)
	d.plan.Add("unshare the mount namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWNS))
}

// takeCgroups copies the container's own v1 directories, for the base namespace.
func (r *rootfs) takeCgroups() {
	r.cgroups = map[string]int{}
	for _, h := range r.in.Host.Hierarchies {
		if dir := r.in.Cgroup.Own[h.Name]; dir != "" {
			r.cgroups[dir], _ = r.open("open tree "+dir, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(dir)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
			makeSlave(r.draft, dir, r.cgroups[dir])
		}
	}
}

// makeSlave makes a copied mount a slave of its original: it receives mounts and unmounts
// from there and sends none.
func makeSlave(d *draft, what string, tree int) {
	d.plan.Add("slave "+what, unix.SYS_MOUNT_SETATTR, plan.V(tree), plan.P(d.plan.String("")), plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE),
		plan.P(d.plan.Words(0, 0, unix.MS_SLAVE, 0)), plan.V(sizeofMountAttr))
}
