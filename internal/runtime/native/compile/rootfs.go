package compile

import (
	"fmt"
	"path"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// rootfs builds the container's files: its root, the mounts on it, and its devices.
type rootfs struct {
	*draft
	fd     int // descriptor of the root filesystem
	mounts []specs.Mount
	places []place // where the first of mounts are
	points []Point // mount points that must exist before the plan runs
	// sources are the descriptors of the copies of binds' sources, by index of their
	// mounts.
	sources map[int]int
	// cgroups are the descriptors of the copies of the container's own v1 directories,
	// by path.
	cgroups map[string]int
}

// filesystem adds everything from the first mount to the new root.
func (c *compiler) filesystem() error {
	prop, err := c.rootPropagation()
	if err != nil {
		return err
	}
	first, r := c.next, &rootfs{draft: &c.draft}
	old, err := r.enter(prop)
	if err != nil {
		return err
	}
	if err := r.fill(); err != nil {
		return err
	}
	c.out.Points = r.points
	if c.in.stops() {
		c.stop("the hooks of the creation")
	}
	c.connectListener(c.in.Spec.Linux.Seccomp)
	r.pivot(old, prop)
	if c.next > first {
		c.plan.Add("close the copies", unix.SYS_CLOSE_RANGE, plan.V(first), plan.V(c.next-1), plan.V(0))
		c.next = first
	}
	return nil
}

// enter goes to the mount namespace in which the root filesystem is built, and opens the root. old is the descriptor of
// the root that it replaces.
func (r *rootfs) enter(prop uint64) (old int, err error) {
	empty := plan.P(r.plan.String(""))
	place := r.in.Root
	root := plan.P(r.plan.String(place))
	leaves := r.in.startsFromBase()
	if !leaves && !r.in.borrows() {
		r.plan.Add("propagation of /", unix.SYS_MOUNT, empty, plan.P(r.plan.String("/")), empty, plan.V(prop), empty)
	}
	switch {
	case leaves:
		place = basens.Root
		if err := r.enterBaseNamespace(); err != nil {
			return 0, err
		}
	case r.user != nil:
		place = scratchRoot
		r.scratchRootMount()
	case r.in.borrows():
		r.plan.Add("bind the root", unix.SYS_MOUNT, root, root, empty, plan.V(unix.MS_BIND|unix.MS_REC), empty)
		r.plan.Add("private root", unix.SYS_MOUNT, empty, root, empty, plan.V(unix.MS_PRIVATE|unix.MS_REC), empty)
	default:
		r.privateBelow(place)
		r.plan.Add("bind the root", unix.SYS_MOUNT, root, root, empty, plan.V(unix.MS_BIND|unix.MS_REC), empty)
	}
	old, _ = r.open("open /", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(r.plan.String("/")), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	r.fd, _ = r.open("open the root", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(place)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	return old, nil
}

// fill makes the mounts, the working directory, the devices and the terminal, and protects the paths that the spec names.
func (r *rootfs) fill() error {
	if err := r.noExecDirs(); err != nil {
		return err
	}
	for i, m := range r.in.Spec.Mounts {
		if err := r.mount(i, m); err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		r.mounts = append(r.mounts, m)
	}
	if cwd := r.in.Spec.Process.Cwd; path.IsAbs(cwd) {
		if path.Clean(cwd) != "/" {
			r.provide(cwd, false)
		}
	} else {
		return fmt.Errorf("process.cwd: %q is not absolute: %w", cwd, errdefs.ErrInvalidArgument)
	}
	if r.in.Confine == nil { // the root of a confined program stays empty
		if err := r.devices(); err != nil {
			return err
		}
	}
	if r.in.Spec.Process.Terminal {
		r.console()
	}
	r.finishTmpfs()
	for _, p := range r.in.Spec.Linux.ReadonlyPaths {
		r.readonly(p)
	}
	return r.maskAll()
}

// privateBelow makes the mount that contains the root private, because pivot_root
// refuses a new root below a shared mount. The engine mounts a container's root itself;
// but a bundle's root may be any directory, and its mount one further up.
func (r *rootfs) privateBelow(root string) {
	empty := plan.P(r.plan.String(""))
	var jumps []int
	for p := path.Clean(root); ; p = path.Dir(p) {
		private := r.plan.Add("private "+p, unix.SYS_MOUNT, empty, plan.P(r.plan.String(p)), empty, plan.V(unix.MS_PRIVATE), empty)
		if p == "/" {
			break
		}
		private.Allow(uint16(unix.EINVAL)).Kind = plan.Try
		try := r.plan.Len() - 1
		jumps = append(jumps, r.plan.Len())
		r.plan.Add("private", 0).Kind = plan.Jump
		r.plan.Over(try)
	}
	for _, j := range jumps {
		r.plan.Over(j)
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
func (r *rootfs) pivot(old int, prop uint64) {
	dot, empty := plan.P(r.plan.String(".")), plan.P(r.plan.String(""))
	switch {
	case r.in.borrows():
		r.plan.Add("fchdir to the root", unix.SYS_FCHDIR, plan.V(r.fd))
		r.plan.Add("chroot", unix.SYS_CHROOT, dot)
	case r.in.Host.Initramfs:
		r.moveRoot()
	default:
		r.plan.Add("fchdir to the root", unix.SYS_FCHDIR, plan.V(r.fd))
		r.plan.Add("pivot_root", unix.SYS_PIVOT_ROOT, dot, dot)
		r.plan.Add("fchdir to the old root", unix.SYS_FCHDIR, plan.V(old))
		r.plan.Add("slave old root", unix.SYS_MOUNT, empty, dot, empty, plan.V(unix.MS_SLAVE|unix.MS_REC), empty)
		r.plan.Add("unmount the old root", unix.SYS_UMOUNT2, dot, plan.V(unix.MNT_DETACH))
		r.plan.Add("chdir /", unix.SYS_CHDIR, plan.P(r.plan.String("/")))
	}
	r.closeLast(r.fd)
	r.closeLast(old)
	if r.in.Spec.Root.Readonly {
		r.plan.Add("read-only root", unix.SYS_MOUNT_SETATTR, plan.V(unix.AT_FDCWD), plan.P(r.plan.String("/")), plan.V(0),
			r.attr(unix.MOUNT_ATTR_RDONLY, 0), plan.V(sizeofMountAttr))
	}
	if r.in.Spec.Linux.RootfsPropagation != "" {
		r.plan.Add("propagation of the root", unix.SYS_MOUNT, empty, plan.P(r.plan.String("/")), empty, plan.V(prop), empty)
	}
}
