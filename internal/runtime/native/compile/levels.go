package compile

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// The versions of Landlock's interface that the levels need: one that covers truncation (Linux 6.2),
// and one that covers TCP sockets (Linux 6.7).
const (
	landlockTruncates = 3
	landlockNetworks  = 4
)

// fsChanges are the rights to change files and directories.
const fsChanges = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER | fsMake | fsNode

// fsFileChanges are those of fsChanges that a rule about a single file can have.
const fsFileChanges = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE

// levels returns the spec's levels, if the kernel can enforce them.
func (d *draft) levels() (l ocispec.Levels, err error) {
	if l, err = ocispec.LevelsOf(d.in.Spec); err != nil {
		return l, err
	}
	needs := 0
	if l.ReadOnlySystem {
		needs = landlockTruncates
	}
	if l.NoBind || l.NoConnect {
		needs = landlockNetworks
	}
	if v := d.in.Host.Landlock; v < needs {
		return l, fmt.Errorf("annotation %s: %s needs version %d of Landlock, and the kernel has %d (0 is none): remove it, or use a newer kernel with Landlock on: %w",
			core.LandlockAnnotation, strings.Join(l.Names(), ", "), needs, v, errdefs.ErrFailedPrecondition)
	}
	if l.ReadOnlySystem && d.in.borrows() {
		return l, notDone("annotation " + core.LandlockAnnotation + " of a container without a mount namespace of its own")
	}
	return l, nil
}

// restrictToLevels applies the container's levels to the process, which has its new root, and still the privilege for
// it. A process of a confined program has fewer rights than any level leaves.
func (c *compiler) restrictToLevels() error {
	l, err := c.levels()
	if err != nil || l == (ocispec.Levels{}) || c.in.Confine != nil {
		return err
	}
	var fs, net uint64
	if l.ReadOnlySystem {
		fs = fsChanges
	}
	if l.NoBind {
		net |= unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if l.NoConnect {
		net |= unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	rules := ruleset(&c.draft, c.in.Host.Landlock, fs, net, 0)
	if fs != 0 {
		rulesOfChanges(c, rules)
	}
	c.restrict(rules)
	return nil
}

// rulesOfChanges allows changes in the directories for data and in the writable mounts.
func rulesOfChanges(c *compiler, rules int) {
	for _, dir := range append(ocispec.DataDirs(), "dev") {
		mayChange(c, rules, "/"+dir, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	}
	// The image may lead to a mount by links. An exec follows none, because the program may have made them meanwhile.
	resolve := uint64(unix.RESOLVE_NO_MAGICLINKS)
	if c.in.Root == "" {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	for _, m := range c.in.Spec.Mounts {
		if !ocispec.ReadOnlyMount(m) {
			mayChange(c, rules, m.Destination, resolve)
		}
	}
}

// mayChange allows changes at and below a path, if it exists.
func mayChange(c *compiler, rules int, p string, resolve uint64) {
	how := c.plan.Words(uint64(unix.O_PATH|unix.O_CLOEXEC), 0, resolve)
	fd, open := c.open("open "+p, unix.SYS_OPENAT2, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(p)), plan.P(how), plan.V(unix.SizeofOpenHow))
	c.plan.At(open).Allow(uint16(unix.ENOENT), uint16(unix.ELOOP)).Kind = plan.Try
	// The kernel refuses the rights of a directory for a file.
	addRule(&c.draft, rules, fd, fsChanges).Allow(uint16(unix.EINVAL)).Kind = plan.Try
	dir := c.plan.Len() - 1
	c.plan.Add("was a directory", 0).Kind = plan.Jump
	jump := c.plan.Len() - 1
	c.plan.Over(dir)
	addRule(&c.draft, rules, fd, fsFileChanges)
	c.plan.Over(jump)
	c.closeLast(fd)
	c.plan.Over(open)
}

// noExecDirs mounts the directories for data over themselves, so that nothing in them can be executed,
// if the container's levels ask for that. It comes before the container's mounts, which are made on
// these.
func (r *rootfs) noExecDirs() error {
	l, err := r.levels()
	if err != nil || !l.NoExec || r.in.Confine != nil || r.in.Spec.Root.Readonly {
		return err
	}
	empty := plan.P(r.plan.String(""))
	for _, dir := range ocispec.DataDirs() {
		how := r.plan.Words(uint64(unix.O_PATH|unix.O_CLOEXEC), 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		fd, open := r.open("open /"+dir+" in the root", unix.SYS_OPENAT2, plan.V(r.fd), plan.P(r.plan.String(dir)), plan.P(how), plan.V(unix.SizeofOpenHow))
		r.plan.At(open).Allow(uint16(unix.ENOENT), uint16(unix.ELOOP)).Kind = plan.Try
		tree, _ := r.open("open tree /"+dir, unix.SYS_OPEN_TREE, plan.V(fd), empty, plan.V(unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
		r.plan.Add("no execution in /"+dir, unix.SYS_MOUNT_SETATTR, plan.V(tree), empty, plan.V(unix.AT_EMPTY_PATH), r.attr(unix.MOUNT_ATTR_NOEXEC, 0), plan.V(sizeofMountAttr))
		r.plan.Add("attach /"+dir, unix.SYS_MOVE_MOUNT, plan.V(tree), empty, plan.V(fd), empty, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
		r.closeLast(tree)
		r.closeLast(fd)
		r.plan.Over(open)
	}
	return nil
}
