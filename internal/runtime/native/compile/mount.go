package compile

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/weaken"
)

// filesystem adds everything from the first mount to the new root.
func (c *compiler) filesystem() error {
	prop, err := c.rootPropagation()
	if err != nil {
		return err
	}
	empty := plan.P(c.plan.String(""))
	first, place := c.next, c.in.Root
	root := plan.P(c.plan.String(place))
	leaves := c.in.startsFromBase()
	if !leaves && !c.in.borrows() {
		c.plan.Add("propagation of /", unix.SYS_MOUNT, empty, plan.P(c.plan.String("/")), empty, plan.V(prop), empty)
	}
	switch {
	case leaves:
		place = basens.Root
		if err := c.enterBaseNamespace(); err != nil {
			return err
		}
	case c.user != nil:
		place = scratchRoot
		c.creation().scratchRootMount()
	case c.in.borrows():
		c.plan.Add("bind the root", unix.SYS_MOUNT, root, root, empty, plan.V(unix.MS_BIND|unix.MS_REC), empty)
		c.plan.Add("private root", unix.SYS_MOUNT, empty, root, empty, plan.V(unix.MS_PRIVATE|unix.MS_REC), empty)
	default:
		privateBelow(c, place)
		c.plan.Add("bind the root", unix.SYS_MOUNT, root, root, empty, plan.V(unix.MS_BIND|unix.MS_REC), empty)
	}
	old, _ := c.open("open /", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String("/")), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	c.root, _ = c.open("open the root", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(place)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	for i, m := range c.in.Spec.Mounts {
		if err := c.mount(i, m); err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		c.mounts = append(c.mounts, m)
	}
	if cwd := c.in.Spec.Process.Cwd; path.IsAbs(cwd) {
		if path.Clean(cwd) != "/" {
			c.provide(cwd, false)
		}
	} else {
		return fmt.Errorf("process.cwd: %q is not absolute: %w", cwd, errdefs.ErrInvalidArgument)
	}
	if c.in.Confine == nil { // the root of a confined program stays empty
		if err := c.deviceFiles().devices(); err != nil {
			return err
		}
	}
	if c.in.Spec.Process.Terminal {
		c.processSetup().console()
	}
	c.finishTmpfs()
	for _, p := range c.in.Spec.Linux.ReadonlyPaths {
		c.readonly(p)
	}
	if err := maskAll(c); err != nil {
		return err
	}
	if c.in.stops() {
		stop(c, "the hooks of the creation")
	}
	connectListener(c, c.in.Spec.Linux.Seccomp)
	c.pivot(old, prop)
	if c.next > first {
		c.plan.Add("close the copies", unix.SYS_CLOSE_RANGE, plan.V(first), plan.V(c.next-1), plan.V(0))
		c.next = first
	}
	return nil
}

// privateBelow makes the mount that contains the root private, because pivot_root
// refuses a new root below a shared mount. The engine mounts a container's root itself;
// but a bundle's root may be any directory, and its mount one further up.
func privateBelow(c *compiler, root string) {
	empty := plan.P(c.plan.String(""))
	var jumps []int
	for p := path.Clean(root); ; p = path.Dir(p) {
		private := c.plan.Add("private "+p, unix.SYS_MOUNT, empty, plan.P(c.plan.String(p)), empty, plan.V(unix.MS_PRIVATE), empty)
		if p == "/" {
			break
		}
		private.Allow(uint16(unix.EINVAL)).Kind = plan.Try
		try := c.plan.Len() - 1
		jumps = append(jumps, c.plan.Len())
		c.plan.Add("private", 0).Kind = plan.Jump
		c.plan.Over(try)
	}
	for _, j := range jumps {
		c.plan.Over(j)
	}
}

func (c *compiler) rootPropagation() (uint64, error) {
	switch p := c.in.Spec.Linux.RootfsPropagation; p {
	case "":
		return unix.MS_SLAVE | unix.MS_REC, nil
	default:
		o := ocispec.ParseMountOptions([]string{p})
		if o.Propagation == 0 {
			return 0, fmt.Errorf("linux.rootfsPropagation: %q: unknown: %w", p, errdefs.ErrInvalidArgument)
		}
		return uint64(o.Propagation), nil
	}
}

// pivot makes the root filesystem the root and detaches the old one.
func (c *compiler) pivot(old int, prop uint64) {
	dot, empty := plan.P(c.plan.String(".")), plan.P(c.plan.String(""))
	switch {
	case c.in.borrows():
		c.plan.Add("fchdir to the root", unix.SYS_FCHDIR, plan.V(c.root))
		c.plan.Add("chroot", unix.SYS_CHROOT, dot)
	case c.in.Host.Initramfs:
		moveRoot(c)
	default:
		c.plan.Add("fchdir to the root", unix.SYS_FCHDIR, plan.V(c.root))
		c.plan.Add("pivot_root", unix.SYS_PIVOT_ROOT, dot, dot)
		c.plan.Add("fchdir to the old root", unix.SYS_FCHDIR, plan.V(old))
		c.plan.Add("slave old root", unix.SYS_MOUNT, empty, dot, empty, plan.V(unix.MS_SLAVE|unix.MS_REC), empty)
		c.plan.Add("unmount the old root", unix.SYS_UMOUNT2, dot, plan.V(unix.MNT_DETACH))
		c.plan.Add("chdir /", unix.SYS_CHDIR, plan.P(c.plan.String("/")))
	}
	c.closeLast(c.root)
	c.closeLast(old)
	if c.in.Spec.Root.Readonly {
		c.plan.Add("read-only root", unix.SYS_MOUNT_SETATTR, plan.V(unix.AT_FDCWD), plan.P(c.plan.String("/")), plan.V(0),
			c.attr(unix.MOUNT_ATTR_RDONLY, 0), plan.V(sizeofMountAttr))
	}
	if c.in.Spec.Linux.RootfsPropagation != "" {
		c.plan.Add("propagation of the root", unix.SYS_MOUNT, empty, plan.P(c.plan.String("/")), empty, plan.V(prop), empty)
	}
}

// attr encodes a struct mount_attr.
func (c *compiler) attr(set, clr uint64) plan.Arg {
	return plan.P(c.plan.Words(set, clr, 0, 0))
}

// target opens a path as the container sees it: symlinks are resolved inside the root,
// and magic links are refused.
func (c *compiler) target(p string) (fd, index int) {
	flags, resolve := uint64(unix.O_PATH|unix.O_CLOEXEC), uint64(unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if p := path.Clean("/" + p); p == "/proc" || p == "/sys" {
		// An image with a link as /proc could otherwise make another file system look like proc.
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	how := c.plan.Words(flags, 0, resolve)
	return c.open("open "+p+" in the root", unix.SYS_OPENAT2, plan.V(c.root), plan.P(c.plan.String(relative(p))), plan.P(how), plan.V(unix.SizeofOpenHow))
}

func relative(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	if p == "" {
		return "."
	}
	return p
}

// fdPath returns a path for an open descriptor, because mount(2) takes paths only. It is
// below /proc, which is the host's at this point.
func (c *compiler) fdPath(fd int) plan.Arg {
	return plan.P(c.plan.String("/proc/self/fd/" + strconv.Itoa(fd)))
}

// provide makes sure that a mount point exists. In the root itself it is made before the
// plan runs; below another mount, by the plan.
func (c *compiler) provide(p string, file bool) {
	c.settle()
	w, at, err := c.missing(p, file)
	if err != nil {
		c.out.Points = append(c.out.Points, Point{p, file}) // MakePoints, or the plan, fails by it
		return
	}
	if !w.passed {
		c.out.Points = append(c.out.Points, Point{path.Clean("/" + p), file})
	} else if !c.covered(at) {
		c.out.Points = append(c.out.Points, Point{at, file})
	}
	for _, s := range w.steps {
		switch {
		case c.covered(path.Join(s.parent, s.name)):
		case w.passed && path.Join(s.parent, s.name) != at:
			c.out.Points = append(c.out.Points, Point{path.Join(s.parent, s.name), s.file})
			fallthrough
		default:
			if c.user == nil {
				continue
			}
			// The agent cannot write to a root with mapped owners.
		}
		fd, _ := c.target(s.parent)
		arg := plan.P(c.plan.String(s.name))
		if s.file {
			c.plan.Add("create "+p, unix.SYS_MKNODAT, plan.V(fd), arg, plan.V(unix.S_IFREG|0o644), plan.V(0)).Allow(uint16(unix.EEXIST))
		} else {
			c.plan.Add("make "+p, unix.SYS_MKDIRAT, plan.V(fd), arg, plan.V(0o755)).Allow(uint16(unix.EEXIST))
		}
		c.closeLast(fd)
	}
}

func (c *compiler) mount(i int, m specs.Mount) error {
	if !path.IsAbs(m.Destination) || strings.ContainsRune(m.Destination+m.Source+m.Type, 0) {
		return fmt.Errorf("destination is not an absolute path: %w", errdefs.ErrInvalidArgument)
	}
	if path.Clean(m.Destination) == "/" {
		return notDone("destination /")
	}
	o := ocispec.ParseMountOptions(m.Options)
	switch {
	case isBind(m, o):
		return c.bind(i, m, o)
	case c.creation().showsHostNamespace(m):
		c.provide(m.Destination, false)
		c.creation().fromScratch(scratchMount(i), m.Destination, unix.AT_RECURSIVE)
		c.setAttrs(m.Destination, 0, o.RecursiveSet, o.RecursiveClear, uint64(o.Propagation))
		return nil
	case m.Type == "cgroup" || m.Type == "cgroup2":
		return c.cgroupMount(m, o)
	case m.Type == "proc" && c.late != nil && !c.in.Host.ProcPidNS:
		c.provide(m.Destination, false)
		return c.late.placeProc(c, i, m, o)
	case m.Type == "":
		return fmt.Errorf("no type: %w", errdefs.ErrInvalidArgument)
	}
	var copied []entry
	if data, up := without(o.Data, "tmpcopyup"); up {
		if m.Type != "tmpfs" {
			return fmt.Errorf("option tmpcopyup: not of a %s: %w", m.Type, errdefs.ErrInvalidArgument)
		}
		var err error
		if copied, err = copyUp(c, m.Destination); err != nil {
			return err
		}
		o.Data = data
	}
	mode, known := modeOf(c.in.Root, m.Destination, c.mounts)
	c.provide(m.Destination, false)
	if m.Type == "proc" && c.late != nil {
		o.Data = append(slices.Clone(o.Data), c.late.procOption())
	}
	flags := o.Flags
	if m.Type == "tmpfs" {
		if known && !slices.ContainsFunc(o.Data, func(d string) bool { return strings.HasPrefix(d, "mode=") }) {
			o.Data = append(o.Data, fmt.Sprintf("mode=%04o", mode))
		}
		flags &^= unix.MS_RDONLY // finishTmpfs sets it, after everything in it is made
	}
	fd, _ := c.target(m.Destination)
	source := m.Source
	if source == "" {
		source = m.Type
	}
	c.plan.Add("mount "+m.Type+" on "+m.Destination, unix.SYS_MOUNT, plan.P(c.plan.String(source)), c.fdPath(fd), plan.P(c.plan.String(m.Type)),
		plan.V(flags), plan.P(c.plan.String(c.in.mountData(m.Type, o.Data))))
	c.closeLast(fd)
	labelMqueue(c, m.Destination, m.Type)
	copyInto(c, m.Destination, copied)
	c.setAttrs(m.Destination, 0, o.RecursiveSet, o.RecursiveClear, uint64(o.Propagation))
	return nil
}

// modeOf returns the permissions of a directory in the root filesystem, which a tmpfs
// mounted over it gets too, as in other runtimes.
func modeOf(root, p string, mounts []specs.Mount) (mode uint32, ok bool) {
	p = path.Clean("/" + p)
	for _, m := range mounts {
		if d := path.Clean("/" + m.Destination); p == d || strings.HasPrefix(p, d+"/") {
			return 0, false
		}
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := inRoot(dir, p)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, false
	}
	return st.Mode & 0o7777, true
}

// setAttrs changes the attributes of the mount at p.
func (c *compiler) setAttrs(p string, set, rset, rclr, prop uint64) {
	if set|rset|rclr|prop == 0 {
		return
	}
	fd, _ := c.target(p)
	empty := plan.P(c.plan.String(""))
	if set != 0 {
		c.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(fd), empty, plan.V(unix.AT_EMPTY_PATH), c.attr(set, 0), plan.V(sizeofMountAttr))
	}
	if rset|rclr != 0 {
		c.plan.Add("recursive attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(fd), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), c.attr(rset, rclr), plan.V(sizeofMountAttr))
	}
	if prop != 0 {
		c.plan.Add("propagation of "+p, unix.SYS_MOUNT, empty, c.fdPath(fd), empty, plan.V(prop), empty)
	}
	c.closeLast(fd)
}

// bind mounts a directory or file of the host: it gives a detached copy of the mount its
// attributes, and only then attaches it.
func (c *compiler) bind(i int, m specs.Mount, o ocispec.MountOptions) error {
	file, err := sourceIsFile(m)
	if err != nil {
		return err
	}
	c.provide(m.Destination, file)
	if src, early := c.sources[i]; early {
		c.attach(src, m.Destination)
	} else if c.user != nil {
		c.creation().fromScratch(scratchMount(i), m.Destination, unix.AT_RECURSIVE)
	} else {
		src, _, err := c.source(m, o)
		if err != nil {
			return err
		}
		c.attach(src, m.Destination)
		c.closeLast(src)
	}
	c.setAttrs(m.Destination, 0, 0, 0, uint64(o.Propagation))
	return nil
}

func sourceIsFile(m specs.Mount) (bool, error) {
	if !path.IsAbs(m.Source) {
		return false, fmt.Errorf("source %q is not absolute: %w", m.Source, errdefs.ErrInvalidArgument)
	}
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return false, err
	}
	var st os.FileInfo
	if base != "" {
		st, err = beneath.Stat(base, rel)
	} else {
		st, err = os.Stat(m.Source)
	}
	if err != nil {
		return false, fmt.Errorf("source %s: %w: %w", m.Source, err, classOf(err))
	}
	return !st.IsDir(), nil
}

// openTree opens a detached copy of the mount of a bind's source. If a workload may own a part of
// the source's path, the child resolves that part itself, following no links, and copies the opened
// file.
func openTree(c *compiler, m specs.Mount, flags uint64) (src int, err error) {
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return 0, err
	}
	if base == "" || weaken.Off(weaken.Beneath) {
		src, _ = c.open("open tree "+m.Source, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(m.Source)), plan.V(flags))
		return src, nil
	}
	src, _ = c.open("open "+base, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(base)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	how := c.plan.Words(unix.O_PATH|unix.O_CLOEXEC, 0, beneath.Resolve)
	at, _ := c.open("open "+rel+" below "+base, unix.SYS_OPENAT2, plan.V(src), plan.P(c.plan.String(rel)), plan.P(how), plan.V(unix.SizeofOpenHow))
	tree, _ := c.open("open tree "+m.Source, unix.SYS_OPEN_TREE, plan.V(at), plan.P(c.plan.String("")), plan.V(flags|unix.AT_EMPTY_PATH))
	// The copy gets the number of the base, because only the last descriptor can be
	// closed.
	c.plan.Add("keep the copy", unix.SYS_DUP3, plan.V(tree), plan.V(src), plan.V(unix.O_CLOEXEC)).Result(uint64(src))
	c.closeLast(tree)
	c.closeLast(at)
	return src, nil
}

// source opens a detached copy of a bind's source and sets its attributes.
func (c *compiler) source(m specs.Mount, o ocispec.MountOptions) (src int, file bool, err error) {
	if file, err = sourceIsFile(m); err != nil {
		return 0, false, err
	}
	im, err := c.creation().idmapOf(m, o)
	if err != nil {
		return 0, false, err
	}
	flags, recursive := uint64(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint64(0)
	if o.Flags&unix.MS_REC != 0 {
		recursive = unix.AT_RECURSIVE
	}
	empty := plan.P(c.plan.String(""))
	if src, err = openTree(c, m, flags|recursive); err != nil {
		return 0, false, err
	}
	if set := attrsOf(o.Flags); set != 0 {
		c.plan.Add("attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH), c.attr(set, atime(set)), plan.V(sizeofMountAttr))
	}
	if o.RecursiveSet|o.RecursiveClear != 0 {
		c.plan.Add("recursive attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE),
			c.attr(o.RecursiveSet, o.RecursiveClear|atime(o.RecursiveSet)), plan.V(sizeofMountAttr))
	}
	if im != nil {
		c.creation().mapOwners(src, m.Destination, im)
	}
	return src, file, nil
}

// attach attaches a detached mount at p.
func (c *compiler) attach(src int, p string) {
	empty := plan.P(c.plan.String(""))
	fd, _ := c.target(p)
	c.plan.Add("mount on "+p, unix.SYS_MOVE_MOUNT, plan.V(src), empty, plan.V(fd), empty, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	c.closeLast(fd)
}

// attrsOf turns MS_* flags into MOUNT_ATTR_* ones.
func attrsOf(flags uintptr) (set uint64) {
	for _, f := range []struct {
		ms   uintptr
		attr uint64
	}{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
		{unix.MS_NOATIME, unix.MOUNT_ATTR_NOATIME},
		{unix.MS_STRICTATIME, unix.MOUNT_ATTR_STRICTATIME},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME},
		{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if flags&f.ms != 0 {
			set |= f.attr
		}
	}
	return set
}

// atime returns the attributes to clear for setting an access time mode.
func atime(set uint64) uint64 {
	if set&(unix.MOUNT_ATTR_NOATIME|unix.MOUNT_ATTR_STRICTATIME) != 0 {
		return unix.MOUNT_ATTR__ATIME
	}
	return 0
}

// finishTmpfs makes those tmpfs mounts read-only that are meant to be.
func (c *compiler) finishTmpfs() {
	for _, m := range c.in.Spec.Mounts {
		if o := ocispec.ParseMountOptions(m.Options); m.Type == "tmpfs" && o.Flags&unix.MS_RDONLY != 0 {
			c.setAttrs(m.Destination, unix.MOUNT_ATTR_RDONLY, 0, 0, 0)
		}
	}
}

// readonly binds a path over itself, read-only. A path that does not exist needs no
// protection.
func (c *compiler) readonly(p string) {
	empty := plan.P(c.plan.String(""))
	fd, at := c.target(p)
	c.optional(at)
	src, _ := c.open("copy the mount of "+p, unix.SYS_OPEN_TREE, plan.V(fd), empty, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE))
	c.plan.Add("read-only "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), c.attr(unix.MOUNT_ATTR_RDONLY, 0), plan.V(sizeofMountAttr))
	c.plan.Add("mount "+p+" read-only", unix.SYS_MOVE_MOUNT, plan.V(src), empty, plan.V(fd), empty, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	c.closeLast(src)
	c.closeLast(fd)
	c.plan.Over(at)
}

func maskAll(c *compiler) error {
	if len(c.in.Spec.Linux.MaskedPaths) == 0 {
		return nil
	}
	null, err := nullDevice(c)
	if err != nil {
		return err
	}
	for _, p := range c.in.Spec.Linux.MaskedPaths {
		c.mask(p, null)
	}
	return nil
}

// nullDevice returns the path of the null device that hides files: that of the base
// namespace, one on the scratch tmpfs, or the host's, which must really be one.
func nullDevice(c *compiler) (string, error) {
	switch {
	case c.in.startsFromBase():
		return basens.Null, nil
	case c.user != nil && !weaken.Off(weaken.HostNull):
		return scratchNull, nil
	}
	if err := basens.IsNull(basens.Null); err != nil && !weaken.Off(weaken.HostNull) {
		return "", fmt.Errorf("linux.maskedPaths: %w: make it anew (rm -f /dev/null; mknod -m 666 /dev/null c 1 3): %w", err, errdefs.ErrFailedPrecondition)
	}
	return basens.Null, nil
}

// mask hides a file behind a null device, or a directory behind an empty tmpfs.
func (c *compiler) mask(p, null string) {
	empty := plan.P(c.plan.String(""))
	fd, at := c.target(p)
	c.optional(at)
	try := c.plan.Len()
	c.plan.Add("mask "+p, unix.SYS_MOUNT, plan.P(c.plan.String(null)), c.fdPath(fd), empty, plan.V(unix.MS_BIND), empty).Allow(uint16(unix.ENOTDIR)).Kind = plan.Try
	over := c.plan.Len()
	c.plan.Add("masked", 0).Kind = plan.Jump
	c.plan.Over(try)
	if c.in.shares() {
		c.plan.Add("mask directory "+p, unix.SYS_MOUNT, plan.P(c.plan.String(basens.Blank)), c.fdPath(fd), empty, plan.V(unix.MS_BIND), empty)
	} else {
		c.plan.Add("mask directory "+p, unix.SYS_MOUNT, plan.P(c.plan.String("tmpfs")), c.fdPath(fd), plan.P(c.plan.String("tmpfs")), plan.V(unix.MS_RDONLY), plan.P(c.plan.String(c.in.mountData("tmpfs", []string{"size=0k", "nr_inodes=1"}))))
	}
	c.plan.Over(over)
	c.closeLast(fd)
	c.plan.Over(at)
}

// optional allows the open at index i to fail because the path does not exist. Over then
// sets which operations are skipped.
func (c *compiler) optional(i int) {
	o := c.plan.At(i)
	o.Kind = plan.Try
	o.Allow(uint16(unix.ENOENT), uint16(unix.ENOTDIR))
}
