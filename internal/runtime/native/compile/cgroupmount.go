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
func (c *compiler) cgroupMount(m specs.Mount, o ocispec.MountOptions) error {
	private := c.has(specs.CgroupNamespace)
	c.provide(m.Destination, false)
	if len(c.in.Host.Hierarchies) == 0 {
		switch {
		case cgroupsAt(c.mounts, m.Destination):
			// The kernel refuses to mount a tree twice in one place. The second mount
			// only sets its flags.
			set := attrsOf(o.Flags)
			fd, _ := c.target(m.Destination)
			c.plan.Add("attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(fd), plan.P(c.plan.String("")), plan.V(unix.AT_EMPTY_PATH),
				c.attr(set, plainAttrs&^set|atime(set)), plan.V(sizeofMountAttr))
			c.closeLast(fd)
		case !private && c.user != nil:
			// Only the owner of a cgroup namespace may mount its tree.
			c.bindOwn(m.Destination, c.in.Cgroup.Own[""], o.Flags)
		default:
			c.mountAt(m.Destination, "cgroup", "cgroup2", o.Flags, "")
		}
		c.setAttrs(m.Destination, 0, 0, 0, uint64(o.Propagation))
		return nil
	}
	shared := o.Flags&unix.MS_RDONLY != 0 && c.in.shares()
	if shared {
		bindShared(c, m.Destination, o.Flags)
	} else {
		c.mountAt(m.Destination, "tmpfs", "tmpfs", o.Flags&^unix.MS_RDONLY, "mode=755")
	}
	c.mounts = append(c.mounts, m)
	for _, h := range c.in.Host.Hierarchies {
		p := path.Join(m.Destination, h.Name)
		if !shared {
			c.provide(p, false)
		}
		if private {
			c.mountAt(p, "cgroup", "cgroup", o.Flags, h.Options)
		} else {
			c.bindOwn(p, c.in.Cgroup.Own[h.Name], o.Flags)
		}
		for _, name := range basens.Links(h.Name) {
			if shared {
				break
			}
			fd, _ := c.target(m.Destination)
			c.plan.Add("link "+name, unix.SYS_SYMLINKAT, plan.P(c.plan.String(h.Name)), plan.V(fd), plan.P(c.plan.String(name))).Allow(uint16(unix.EEXIST))
			c.closeLast(fd)
		}
	}
	if o.Flags&unix.MS_RDONLY != 0 && !shared {
		c.setAttrs(m.Destination, unix.MOUNT_ATTR_RDONLY, 0, 0, 0)
	}
	return nil
}

// bindShared binds the shared read-only directory of cgroup hierarchies at p.
func bindShared(c *compiler, p string, flags uintptr) {
	src, _ := c.open("open tree "+basens.Cgroup, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(basens.Cgroup)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	set := attrsOf(flags)
	c.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(c.plan.String("")), plan.V(unix.AT_EMPTY_PATH), c.attr(set, plainAttrs&^set|atime(set)), plan.V(sizeofMountAttr))
	c.attach(src, p)
	c.closeLast(src)
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

func (c *compiler) mountAt(p, source, fstype string, flags uintptr, data string) {
	fd, _ := c.target(p)
	c.plan.Add("mount "+fstype+" on "+p, unix.SYS_MOUNT, plan.P(c.plan.String(source)), c.fdPath(fd), plan.P(c.plan.String(fstype)), plan.V(flags), plan.P(c.plan.String(c.in.mountData(fstype, []string{data}))))
	c.closeLast(fd)
}

func (c *compiler) bindOwn(p, dir string, flags uintptr) {
	if dir == "" {
		return
	}
	src, taken := c.cgroups[dir]
	if !taken {
		src, _ = c.open("open tree "+dir, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(dir)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	}
	if set := attrsOf(flags); set != 0 {
		c.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(c.plan.String("")), plan.V(unix.AT_EMPTY_PATH), c.attr(set, atime(set)), plan.V(sizeofMountAttr))
	}
	c.attach(src, p)
	if !taken {
		c.closeLast(src)
	}
}
