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

// attr encodes a struct mount_attr.
func (d *draft) attr(set, clr uint64) plan.Arg {
	return plan.P(d.plan.Words(set, clr, 0, 0))
}

// target opens a path as the container sees it: symlinks are resolved inside the root,
// and magic links are refused.
func (r *rootfs) target(p string) (fd, index int) {
	flags, resolve := uint64(unix.O_PATH|unix.O_CLOEXEC), uint64(unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if p := path.Clean("/" + p); p == "/proc" || p == "/sys" {
		// An image with a link as /proc could otherwise make another file system look like proc.
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	how := r.plan.Words(flags, 0, resolve)
	return r.open("open "+p+" in the root", unix.SYS_OPENAT2, plan.V(r.fd), plan.P(r.plan.String(relative(p))), plan.P(how), plan.V(unix.SizeofOpenHow))
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
func (r *rootfs) fdPath(fd int) plan.Arg {
	return plan.P(r.plan.String("/proc/self/fd/" + strconv.Itoa(fd)))
}

// provide makes sure that a mount point exists. In the root itself it is made before the
// plan runs; below another mount, by the plan.
func (r *rootfs) provide(p string, file bool) {
	r.settle()
	w, at, err := r.missing(p, file)
	if err != nil {
		r.points = append(r.points, Point{p, file}) // MakePoints, or the plan, fails by it
		return
	}
	if !w.passed {
		r.points = append(r.points, Point{path.Clean("/" + p), file})
	} else if !r.covered(at) {
		r.points = append(r.points, Point{at, file})
	}
	for _, s := range w.steps {
		switch {
		case r.covered(path.Join(s.parent, s.name)):
		case w.passed && path.Join(s.parent, s.name) != at:
			r.points = append(r.points, Point{path.Join(s.parent, s.name), s.file})
			fallthrough
		default:
			if r.user == nil {
				continue
			}
			// The agent cannot write to a root with mapped owners.
		}
		fd, _ := r.target(s.parent)
		arg := plan.P(r.plan.String(s.name))
		if s.file {
			r.plan.Add("create "+p, unix.SYS_MKNODAT, plan.V(fd), arg, plan.V(unix.S_IFREG|0o644), plan.V(0)).Allow(uint16(unix.EEXIST))
		} else {
			r.plan.Add("make "+p, unix.SYS_MKDIRAT, plan.V(fd), arg, plan.V(0o755)).Allow(uint16(unix.EEXIST))
		}
		r.closeLast(fd)
	}
}

func (r *rootfs) mount(i int, m specs.Mount) error {
	if !path.IsAbs(m.Destination) || strings.ContainsRune(m.Destination+m.Source+m.Type, 0) {
		return fmt.Errorf("destination is not an absolute path: %w", errdefs.ErrInvalidArgument)
	}
	if path.Clean(m.Destination) == "/" {
		return notDone("destination /")
	}
	o := ocispec.ParseMountOptions(m.Options)
	switch {
	case isBind(m, o):
		return r.bind(i, m, o)
	case r.showsHostNamespace(m):
		r.provide(m.Destination, false)
		r.fromScratch(scratchMount(i), m.Destination, unix.AT_RECURSIVE)
		r.setAttrs(m.Destination, 0, o.RecursiveSet, o.RecursiveClear, uint64(o.Propagation))
		return nil
	case m.Type == "cgroup" || m.Type == "cgroup2":
		return r.cgroupMount(m, o)
	case m.Type == "proc" && r.late != nil && !r.in.Host.ProcPidNS:
		r.provide(m.Destination, false)
		return r.late.placeProc(r, i, m, o)
	case m.Type == "":
		return fmt.Errorf("no type: %w", errdefs.ErrInvalidArgument)
	}
	var copied []entry
	if data, up := without(o.Data, "tmpcopyup"); up {
		if m.Type != "tmpfs" {
			return fmt.Errorf("option tmpcopyup: not of a %s: %w", m.Type, errdefs.ErrInvalidArgument)
		}
		var err error
		if copied, err = r.copyUp(m.Destination); err != nil {
			return err
		}
		o.Data = data
	}
	mode, known := modeOf(r.in.Root, m.Destination, r.mounts)
	r.provide(m.Destination, false)
	if m.Type == "proc" && r.late != nil {
		o.Data = append(slices.Clone(o.Data), r.late.procOption())
	}
	flags := o.Flags
	if m.Type == "tmpfs" {
		if known && !slices.ContainsFunc(o.Data, func(d string) bool { return strings.HasPrefix(d, "mode=") }) {
			o.Data = append(o.Data, fmt.Sprintf("mode=%04o", mode))
		}
		flags &^= unix.MS_RDONLY // finishTmpfs sets it, after everything in it is made
	}
	fd, _ := r.target(m.Destination)
	source := m.Source
	if source == "" {
		source = m.Type
	}
	r.plan.Add("mount "+m.Type+" on "+m.Destination, unix.SYS_MOUNT, plan.P(r.plan.String(source)), r.fdPath(fd), plan.P(r.plan.String(m.Type)),
		plan.V(flags), plan.P(r.plan.String(r.in.mountData(m.Type, o.Data))))
	r.closeLast(fd)
	r.labelMqueue(m.Destination, m.Type)
	r.copyInto(m.Destination, copied)
	r.setAttrs(m.Destination, 0, o.RecursiveSet, o.RecursiveClear, uint64(o.Propagation))
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
func (r *rootfs) setAttrs(p string, set, rset, rclr, prop uint64) {
	if set|rset|rclr|prop == 0 {
		return
	}
	fd, _ := r.target(p)
	empty := plan.P(r.plan.String(""))
	if set != 0 {
		r.plan.Add("attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(fd), empty, plan.V(unix.AT_EMPTY_PATH), r.attr(set, 0), plan.V(sizeofMountAttr))
	}
	if rset|rclr != 0 {
		r.plan.Add("recursive attributes of "+p, unix.SYS_MOUNT_SETATTR, plan.V(fd), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), r.attr(rset, rclr), plan.V(sizeofMountAttr))
	}
	if prop != 0 {
		r.plan.Add("propagation of "+p, unix.SYS_MOUNT, empty, r.fdPath(fd), empty, plan.V(prop), empty)
	}
	r.closeLast(fd)
}

// bind mounts a directory or file of the host: it gives a detached copy of the mount its
// attributes, and only then attaches it.
func (r *rootfs) bind(i int, m specs.Mount, o ocispec.MountOptions) error {
	file, err := sourceIsFile(m)
	if err != nil {
		return err
	}
	r.provide(m.Destination, file)
	if src, early := r.sources[i]; early {
		r.attach(src, m.Destination)
	} else if r.user != nil {
		r.fromScratch(scratchMount(i), m.Destination, unix.AT_RECURSIVE)
	} else {
		src, _, err := r.source(m, o)
		if err != nil {
			return err
		}
		r.attach(src, m.Destination)
		r.closeLast(src)
	}
	r.setAttrs(m.Destination, 0, 0, 0, uint64(o.Propagation))
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
func (d *draft) openTree(m specs.Mount, flags uint64) (src int, err error) {
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return 0, err
	}
	if base == "" || weaken.Off(weaken.Beneath) {
		src, _ = d.open("open tree "+m.Source, unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(d.plan.String(m.Source)), plan.V(flags))
		return src, nil
	}
	src, _ = d.open("open "+base, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(d.plan.String(base)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	how := d.plan.Words(unix.O_PATH|unix.O_CLOEXEC, 0, beneath.Resolve)
	at, _ := d.open("open "+rel+" below "+base, unix.SYS_OPENAT2, plan.V(src), plan.P(d.plan.String(rel)), plan.P(how), plan.V(unix.SizeofOpenHow))
	tree, _ := d.open("open tree "+m.Source, unix.SYS_OPEN_TREE, plan.V(at), plan.P(d.plan.String("")), plan.V(flags|unix.AT_EMPTY_PATH))
	// The copy gets the number of the base, because only the last descriptor can be
	// closed.
	d.plan.Add("keep the copy", unix.SYS_DUP3, plan.V(tree), plan.V(src), plan.V(unix.O_CLOEXEC)).Result(uint64(src))
	d.closeLast(tree)
	d.closeLast(at)
	return src, nil
}

// source opens a detached copy of a bind's source and sets its attributes.
func (d *draft) source(m specs.Mount, o ocispec.MountOptions) (src int, file bool, err error) {
	if file, err = sourceIsFile(m); err != nil {
		return 0, false, err
	}
	im, err := d.idmapOf(m, o)
	if err != nil {
		return 0, false, err
	}
	flags, recursive := uint64(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint64(0)
	if o.Flags&unix.MS_REC != 0 {
		recursive = unix.AT_RECURSIVE
	}
	empty := plan.P(d.plan.String(""))
	if src, err = d.openTree(m, flags|recursive); err != nil {
		return 0, false, err
	}
	if set := attrsOf(o.Flags); set != 0 {
		d.plan.Add("attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH), d.attr(set, atime(set)), plan.V(sizeofMountAttr))
	}
	if o.RecursiveSet|o.RecursiveClear != 0 {
		d.plan.Add("recursive attributes of "+m.Destination, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE),
			d.attr(o.RecursiveSet, o.RecursiveClear|atime(o.RecursiveSet)), plan.V(sizeofMountAttr))
	}
	if im != nil {
		d.mapOwners(src, m.Destination, im)
	}
	return src, file, nil
}

// attach attaches a detached mount at p.
func (r *rootfs) attach(src int, p string) {
	empty := plan.P(r.plan.String(""))
	fd, _ := r.target(p)
	r.plan.Add("mount on "+p, unix.SYS_MOVE_MOUNT, plan.V(src), empty, plan.V(fd), empty, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	r.closeLast(fd)
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
func (r *rootfs) finishTmpfs() {
	for _, m := range r.in.Spec.Mounts {
		if o := ocispec.ParseMountOptions(m.Options); m.Type == "tmpfs" && o.Flags&unix.MS_RDONLY != 0 {
			r.setAttrs(m.Destination, unix.MOUNT_ATTR_RDONLY, 0, 0, 0)
		}
	}
}

// readonly binds a path over itself, read-only. A path that does not exist needs no
// protection.
func (r *rootfs) readonly(p string) {
	empty := plan.P(r.plan.String(""))
	fd, at := r.target(p)
	r.optional(at)
	src, _ := r.open("copy the mount of "+p, unix.SYS_OPEN_TREE, plan.V(fd), empty, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE))
	r.plan.Add("read-only "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), empty, plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), r.attr(unix.MOUNT_ATTR_RDONLY, 0), plan.V(sizeofMountAttr))
	r.plan.Add("mount "+p+" read-only", unix.SYS_MOVE_MOUNT, plan.V(src), empty, plan.V(fd), empty, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	r.closeLast(src)
	r.closeLast(fd)
	r.plan.Over(at)
}

func (r *rootfs) maskAll() error {
	if len(r.in.Spec.Linux.MaskedPaths) == 0 {
		return nil
	}
	null, err := r.nullDevice()
	if err != nil {
		return err
	}
	for _, p := range r.in.Spec.Linux.MaskedPaths {
		r.mask(p, null)
	}
	return nil
}

// nullDevice returns the path of the null device that hides files: that of the base
// namespace, one on the scratch tmpfs, or the host's, which must really be one.
func (r *rootfs) nullDevice() (string, error) {
	switch {
	case r.in.startsFromBase():
		return basens.Null, nil
	case r.user != nil && !weaken.Off(weaken.HostNull):
		return scratchNull, nil
	}
	if err := basens.IsNull(basens.Null); err != nil && !weaken.Off(weaken.HostNull) {
		return "", fmt.Errorf("linux.maskedPaths: %w: restore it (rm -f /dev/null; mknod -m 666 /dev/null c 1 3): %w", err, errdefs.ErrFailedPrecondition)
	}
	return basens.Null, nil
}

// mask hides a file behind a null device, or a directory behind an empty tmpfs.
func (r *rootfs) mask(p, null string) {
	empty := plan.P(r.plan.String(""))
	fd, at := r.target(p)
	r.optional(at)
	try := r.plan.Len()
	r.plan.Add("mask "+p, unix.SYS_MOUNT, plan.P(r.plan.String(null)), r.fdPath(fd), empty, plan.V(unix.MS_BIND), empty).Allow(uint16(unix.ENOTDIR)).Kind = plan.Try
	over := r.plan.Len()
	r.plan.Add("masked", 0).Kind = plan.Jump
	r.plan.Over(try)
	if r.in.shares() {
		r.plan.Add("mask directory "+p, unix.SYS_MOUNT, plan.P(r.plan.String(basens.Blank)), r.fdPath(fd), empty, plan.V(unix.MS_BIND), empty)
	} else {
		r.plan.Add("mask directory "+p, unix.SYS_MOUNT, plan.P(r.plan.String("tmpfs")), r.fdPath(fd), plan.P(r.plan.String("tmpfs")), plan.V(unix.MS_RDONLY), plan.P(r.plan.String(r.in.mountData("tmpfs", []string{"size=0k", "nr_inodes=1"}))))
	}
	r.plan.Over(over)
	r.closeLast(fd)
	r.plan.Over(at)
}

// optional allows the open at index i to fail because the path does not exist. Over then
// sets which operations are skipped.
func (r *rootfs) optional(i int) {
	o := r.plan.At(i)
	o.Kind = plan.Try
	o.Allow(uint16(unix.ENOENT), uint16(unix.ENOTDIR))
}
