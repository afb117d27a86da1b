package compile

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// cgroupMount mounts the cgroups in the container: the v2 tree, or a tmpfs with a mount
// per v1 hierarchy. With a cgroup namespace they are new mounts, which show the
// namespace's root. Without one, the whole v2 tree is shown, because /proc/self/cgroup
// names a place in the whole tree; of v1 only the container's own directories are.
func (r *rootfs) cgroupMount(m specs.Mount, o ocispec.MountOptions) error {
	private := r.has(specs.CgroupNamespace)
	r.provide(m.Destination, false)
	delegated := o.Flags
	if r.in.Cgroup.Delegated && private { // without a namespace, the mount would show the cgroups of others
		delegated &^= unix.MS_RDONLY
	}
	if len(r.in.Host.Hierarchies) == 0 {
		o.Flags = delegated
		switch {
		case cgroupsAt(r.mounts, m.Destination):
			// The kernel refuses to mount a tree twice in one place. The second mount
			// only sets its flags.
			set := attrsOf(o.Flags)
			fd, _ := r.target(m.Destination)
			r.plan.Add("attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(fd), plan.P(r.plan.String("")), plan.V(unix.AT_EMPTY_PATH),
				r.attr(set, plainAttrs&^set|atime(set)), plan.V(sizeofMountAttr))
			r.closeLast(fd)
		case !private && r.user != nil:
			// Only the owner of a cgroup namespace may mount its tree.
			r.bindOwn(m.Destination, r.in.Cgroup.Own[""], o.Flags)
		default:
			options := ""
			if !private {
				options = r.in.Host.Unified
			}
			r.mountAt(m.Destination, "cgroup", "cgroup2", o.Flags, options)
		}
		r.setAttrs(m.Destination, 0, 0, 0, uint64(o.Propagation))
		return nil
	}
	shared := o.Flags&unix.MS_RDONLY != 0 && r.in.shares()
	if shared {
		r.bindShared(m.Destination, o.Flags)
	} else {
		r.mountAt(m.Destination, "tmpfs", "tmpfs", o.Flags&^unix.MS_RDONLY, "mode=755")
	}
	r.mounts = append(r.mounts, m)
	for _, h := range r.in.Host.Hierarchies {
		p := path.Join(m.Destination, h.Name)
		if !shared {
			r.provide(p, false)
		}
		if private {
			flags := o.Flags
			if h.Name == "systemd" {
				flags = delegated
			}
			r.mountAt(p, "cgroup", "cgroup", flags, h.Options)
		} else {
			r.bindOwn(p, r.in.Cgroup.Own[h.Name], o.Flags)
		}
		for _, name := range basens.Links(h.Name) {
			if shared {
				break
			}
			fd, _ := r.target(m.Destination)
			r.plan.Add("link "+name, unix.SYS_SYMLINKAT, plan.P(r.plan.String(h.Name)), plan.V(fd), plan.P(r.plan.String(name))).Allow(uint16(unix.EEXIST))
			r.closeLast(fd)
		}
	}
	if o.Flags&unix.MS_RDONLY != 0 && !shared {
		r.setAttrs(m.Destination, unix.MOUNT_ATTR_RDONLY, 0, 0, 0)
	}
	return nil
}

// bindShared binds the shared read-only directory of cgroup hierarchies at p.
func (r *rootfs) bindShared(p string, flags uintptr) {
	src, _ := r.open("open tree "+basens.Cgroup, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(basens.Cgroup)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	set := attrsOf(flags)
	r.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(r.plan.String("")), plan.V(unix.AT_EMPTY_PATH), r.attr(set, plainAttrs&^set|atime(set)), plan.V(sizeofMountAttr))
	r.attach(src, p)
	r.closeLast(src)
}

// plainAttrs are the mount attributes that are either on or off.
const plainAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC |
	unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR_NOSYMFOLLOW

// cgroupsAt reports whether a cgroup mount is visible at p after these mounts.
func cgroupsAt(mounts []specs.Mount, p string) bool {
	p = path.Clean("/" + p)
	for _, m := range slices.Backward(mounts) {
		d := path.Clean("/" + m.Destination)
		if d == p {
			return m.Type == "cgroup" || m.Type == "cgroup2"
		}
		if strings.HasPrefix(p, d+"/") {
			return false
		}
	}
	return false
}

func (r *rootfs) mountAt(p, source, fstype string, flags uintptr, data string) {
	fd, _ := r.target(p)
	r.plan.Add("mount "+fstype+" on "+p, unix.SYS_MOUNT, plan.P(r.plan.String(source)), r.fdPath(fd), plan.P(r.plan.String(fstype)), plan.V(flags), plan.P(r.plan.String(r.in.mountData(fstype, []string{data}))))
	r.closeLast(fd)
}

func (r *rootfs) bindOwn(p, dir string, flags uintptr) {
	if dir == "" {
		return
	}
	src, taken := r.cgroups[dir]
	if !taken {
		src, _ = r.open("open tree "+dir, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(dir)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	}
	if set := attrsOf(flags); set != 0 {
		r.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(r.plan.String("")), plan.V(unix.AT_EMPTY_PATH), r.attr(set, atime(set)), plan.V(sizeofMountAttr))
	}
	r.attach(src, p)
	if !taken {
		r.closeLast(src)
	}
}
