package compile

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// userns is the container's user namespace, if that is not the host's.
type userns struct {
	path string    // of a namespace that is joined
	slot plan.Slot // of a namespace that the keeper makes
	fd   int       // its descriptor in the first child
}

// userNamespace reads the user namespace and the mappings from the spec.
func (c *compiler) userNamespace() error {
	l := c.in.Spec.Linux
	at := slices.IndexFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	if len(l.TimeOffsets) > 0 && !c.has(specs.TimeNamespace) {
		return fmt.Errorf("linux.timeOffsets: without a new time namespace: %w", errdefs.ErrInvalidArgument)
	}
	switch {
	case at < 0 && len(l.UIDMappings)+len(l.GIDMappings) > 0:
		return fmt.Errorf("linux.uidMappings: without a user namespace: %w", errdefs.ErrInvalidArgument)
	case at < 0 || !c.in.ownNamespace(specs.UserNamespace):
		return nil
	}
	c.user = &userns{path: l.Namespaces[at].Path}
	// In it the process has every capability, so it must drop all that the spec does not
	// name.
	c.in.Host.Bounding = 1<<(c.in.Host.LastCap+1) - 1
	if c.user.path != "" {
		return nil
	}
	uids, gids, err := idMaps("linux", l.UIDMappings, l.GIDMappings)
	if err != nil {
		return err
	}
	if !uids.Maps(0) || !gids.Maps(0) {
		return fmt.Errorf("linux.uidMappings: root is not mapped: %w", errdefs.ErrInvalidArgument)
	}
	c.user.slot = c.plan.User(uids, gids)
	return nil
}

// idMaps checks a pair of mappings.
func idMaps(field string, uids, gids []specs.LinuxIDMapping) (u, g plan.IDMap, err error) {
	convert := func(name string, from []specs.LinuxIDMapping) (m plan.IDMap) {
		for _, r := range from {
			m = append(m, plan.IDRange{Inside: r.ContainerID, Outside: r.HostID, Size: r.Size})
		}
		if cerr := m.Check(); cerr != nil && err == nil {
			err = fmt.Errorf("%s.%s: %w: %w", field, name, cerr, errdefs.ErrInvalidArgument)
		}
		return m
	}
	return convert("uidMappings", uids), convert("gidMappings", gids), err
}

// idmap says how the owners of a mount's files are mapped.
type idmap struct {
	slot      plan.Slot // of the user namespace with the mapping; 0 for the container's
	recursive uint64    // AT_RECURSIVE or 0
}

// idmapOf returns nil for a mount without mapped owners.
func (d *draft) idmapOf(m specs.Mount, o ocispec.MountOptions) (*idmap, error) {
	given := len(m.UIDMappings)+len(m.GIDMappings) > 0
	ridmap := slices.Contains(o.Data, "ridmap")
	if !given && !ridmap && !slices.Contains(o.Data, "idmap") {
		return nil, nil //nolint:nilnil // none is a usual answer
	}
	im := &idmap{}
	if ridmap {
		im.recursive = unix.AT_RECURSIVE
	}
	switch {
	case !isBind(m, o):
		return nil, fmt.Errorf("uidMappings: only a bind mount's owners can be mapped: %w", errdefs.ErrInvalidArgument)
	case given && d.user != nil && slices.Equal(m.UIDMappings, d.in.Spec.Linux.UIDMappings) && slices.Equal(m.GIDMappings, d.in.Spec.Linux.GIDMappings):
		// The container's own user namespace saves making another.
	case given:
		uids, gids, err := idMaps("mounts[]", m.UIDMappings, m.GIDMappings)
		if err != nil {
			return nil, err
		}
		if im.slot = d.plan.User(uids, gids); len(d.plan.Users()) > plan.MaxUsers {
			return nil, fmt.Errorf("uidMappings: more than %d different mappings: %w", plan.MaxUsers, errdefs.ErrInvalidArgument)
		}
	case d.user == nil:
		return nil, fmt.Errorf("option idmap: without mappings or a user namespace: %w", errdefs.ErrInvalidArgument)
	}
	return im, nil
}

// mappings adds the user namespaces of id-mapped mounts to the plan's header: the keeper
// makes them before the first operation.
func (c *compiler) mappings() error {
	for i, m := range c.in.Spec.Mounts {
		if _, err := c.idmapOf(m, ocispec.ParseMountOptions(m.Options)); err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
	}
	return nil
}

// mapOwners maps the owners of a detached mount's files as im says.
func (d *draft) mapOwners(src int, p string, im *idmap) *plan.Op {
	fd, ok := d.userFDs[im.slot]
	if !ok {
		fd = d.user.fd
	}
	return d.plan.Add("map the owners of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(d.plan.String("")), plan.V(unix.AT_EMPTY_PATH|im.recursive),
		plan.P(d.plan.Words(unix.MOUNT_ATTR_IDMAP, 0, 0, uint64(fd))), plan.V(sizeofMountAttr))
}

// createTwice is for a process in a pid namespace that must belong to a user namespace other than
// the host's, or in a time namespace with offsets. A first child, with the keeper's privileges,
// does the work that the second one may not do, enters the namespaces that only its children will
// be in, and makes the second child, which continues. Only the second one joins the cgroups, which
// may have room for only one process.
func (c *compiler) createTwice(flags uint64) error {
	if err := c.mappings(); err != nil {
		return err
	}
	if c.late != nil {
		return c.createLate(flags)
	}
	c.twice = true
	c.plan.Clone(0, "")
	c.placeStreams(false)
	c.oomScore()
	if err := c.raiseLimits(); err != nil {
		return err
	}
	wait := c.next - 1 // placeStreams keeps it as the last one
	tasks := c.openTasks()
	cgroup := plan.Slot(0)
	if dir := c.in.Cgroup.Unified; dir != "" {
		cgroup = c.plan.NewSlot()
		c.plan.Add("open "+dir, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(dir)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)).To(cgroup)
		c.next++
	}
	if err := c.enterUser(); err != nil {
		return err
	}
	own := flags
	if c.user != nil {
		flags &^= unix.CLONE_NEWIPC // message queues belong to the process that makes the namespace
	}
	c.plan.AddFork("the second child", flags|unix.CLONE_PARENT, unix.CLONE_INTO_CGROUP, cgroup)
	c.plan.Add("wait for the keeper", unix.SYS_READ, plan.V(wait), plan.P(c.plan.Words(0)), plan.V(1)).Result(1)
	self := plan.P(c.plan.Bytes([]byte("0")))
	for i, fd := range tasks {
		c.plan.Add("join "+c.in.Cgroup.Dirs[i], unix.SYS_WRITE, plan.V(fd), self, plan.V(1)).Result(1)
	}
	if c.has(specs.CgroupNamespace) {
		c.plan.Add("unshare the cgroup namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWCGROUP))
	}
	if c.user == nil {
		return nil
	}
	c.becomeRoot()
	if ipc := own & unix.CLONE_NEWIPC; ipc != 0 {
		c.plan.Add("unshare the ipc namespace", unix.SYS_UNSHARE, plan.V(ipc))
	}
	return nil
}

// enterUser joins the joined namespaces, does the work that needs the host's privileges, and enters
// the container's user namespace and its time namespace.
func (c *compiler) enterUser() error {
	user := c.joinNamespaces()
	if c.user != nil {
		if c.user.fd = user; user < 0 {
			c.user.fd = c.userFDs[c.user.slot]
		}
		if err := c.setNames(false); err != nil {
			return err
		}
		if err := c.fillScratch(); err != nil {
			return err
		}
		c.plan.Add("join the user namespace", unix.SYS_SETNS, plan.V(c.user.fd), plan.V(unix.CLONE_NEWUSER))
	}
	if c.has(specs.TimeNamespace) {
		return c.timeNamespace()
	}
	return nil
}

// openTasks opens the files for joining the v1 cgroups. The kernel checks the privileges of the
// process that opened the file, not of the one that writes.
func (c *compiler) openTasks() (fds []int) {
	for _, d := range c.in.Cgroup.Dirs {
		fd, _ := c.open("open "+d+"/tasks", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(d+"/tasks")), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
		fds = append(fds, fd)
	}
	return fds
}

// becomeRoot changes to the IDs of the user namespace's root. That root owns everything
// made from now on, and the host's root is a stranger to it.
func (c *compiler) becomeRoot() {
	zero := plan.V(0)
	c.plan.Add("root's group", unix.SYS_SETRESGID, zero, zero, zero)
	c.plan.Add("no other groups", unix.SYS_SETGROUPS, zero, zero)
	c.plan.Add("root's user", unix.SYS_SETRESUID, zero, zero, zero)
}

// raiseLimits raises hard limits while that is allowed; inside a user namespace it never
// is. Limits are lowered only at the end, so that no open on the way fails because of
// them.
func (c *compiler) raiseLimits() error {
	const small = 4096
	for i, l := range c.in.Spec.Process.Rlimits {
		r, ok := resources[l.Type]
		if !ok {
			return fmt.Errorf("process.rlimits[%d]: %q: unknown: %w", i, l.Type, errdefs.ErrInvalidArgument)
		}
		if l.Hard >= small {
			hard := l.Hard
			if c.late != nil && r == unix.RLIMIT_NPROC {
				hard = oneMore(hard)
			}
			c.plan.Add("raise limit "+l.Type, unix.SYS_PRLIMIT64, plan.V(0), plan.V(r), plan.P(c.plan.Words(hard, hard)), plan.V(0)).Allow(uint16(unix.EPERM))
		}
	}
	return nil
}

// timeNamespace makes a time namespace for the next child and sets its clocks, which is
// possible only while it has no process.
func (c *compiler) timeNamespace() error {
	c.plan.Add("unshare the time namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWTIME))
	offsets := c.in.Spec.Linux.TimeOffsets
	text := ""
	for _, clock := range []string{"monotonic", "boottime"} {
		if o, ok := offsets[clock]; ok {
			text += fmt.Sprintf("%s %d %d\n", clock, o.Secs, o.Nanosecs)
		}
	}
	for clock := range offsets {
		if clock != "monotonic" && clock != "boottime" {
			return fmt.Errorf("linux.timeOffsets: clock %q: unknown: %w", clock, errdefs.ErrInvalidArgument)
		}
	}
	if text == "" {
		return nil
	}
	const file = "/proc/self/timens_offsets"
	fd, _ := c.open("open "+file, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(file)), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
	c.plan.Add("set the clocks", unix.SYS_WRITE, plan.V(fd), plan.P(c.plan.String(text)), plan.V(len(text))).Result(uint64(len(text)))
	c.closeLast(fd)
	return nil
}

// The scratch is a tmpfs mounted over the root filesystem's directory, in a mount
// namespace of the first child. It holds a mount of everything that comes from the host.
// The second child's mount namespace is a copy of that one. Because the copy belongs to
// a less privileged user namespace, the kernel locks each mount's restrictions in it:
// the container cannot lift them.
const (
	scratchRoot       = "r"
	scratchDevicesDir = "d"
	scratchNull       = "n" // null device that hides files
	scratchSysfs      = "s" // a mount of sysfs; the kernel lets a user namespace mount one only beside another
)

// scratchFromBase reports whether the scratch can be in a copy of the base namespace. The other namespace, a copy of the host's
// mounts, is copied twice for each container.
func (in *Input) scratchFromBase() bool {
	return in.needsNoHostMounts() && (in.ownsCgroups() || !slices.ContainsFunc(in.Spec.Mounts, isCgroup))
}

func (in *Input) ownsCgroups() bool {
	return slices.ContainsFunc(in.Spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace })
}

// scratchMount returns the name of spec.mounts[i] on the scratch tmpfs.
func scratchMount(i int) string { return strconv.Itoa(i) }

func (c *compiler) fillScratch() error {
	empty, here, place, base := plan.P(c.plan.String("")), plan.V(unix.AT_FDCWD), c.in.Root, c.in.scratchFromBase()
	if !base {
		c.plan.Add("unshare the mount namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWNS))
		c.plan.Add("slave of the host's mounts", unix.SYS_MOUNT, empty, plan.P(c.plan.String("/")), empty, plan.V(unix.MS_SLAVE|unix.MS_REC), empty)
	}
	type tree struct {
		fd   int
		name string
		file bool
	}
	root, _ := c.open("open tree "+c.in.Root, unix.SYS_OPEN_TREE, here, plan.P(c.plan.String(c.in.Root)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	trees := []tree{{root, scratchRoot, false}}
	for i, m := range c.in.Spec.Mounts {
		o := ocispec.ParseMountOptions(m.Options)
		if !isBind(m, o) {
			continue
		}
		src, file, err := c.source(m, o)
		if err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		trees = append(trees, tree{src, scratchMount(i), file})
	}
	if c.late != nil && c.late.proc >= 0 {
		trees = append(trees, tree{c.late.proc, scratchMount(slices.IndexFunc(c.in.Spec.Mounts, isProc)), false})
	}
	if base {
		if slices.ContainsFunc(c.in.Spec.Mounts, func(m specs.Mount) bool { return m.Type == "sysfs" && !c.showsHostNamespace(m) }) {
			sysfs, _ := c.open("open tree /sys", unix.SYS_OPEN_TREE, here, plan.P(c.plan.String("/sys")), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
			trees = append(trees, tree{sysfs, scratchSysfs, false})
		}
		for _, t := range trees {
			makeSlave(&c.draft, t.name, t.fd)
		}
		copyBaseNamespace(&c.draft)
		place = basens.Root
	}
	c.plan.Add("scratch", unix.SYS_MOUNT, plan.P(c.plan.String("scratch")), plan.P(c.plan.String(place)), plan.P(c.plan.String("tmpfs")), plan.V(0), plan.P(c.plan.String("mode=755,size=1m")))
	c.plan.Add("chdir to the scratch", unix.SYS_CHDIR, plan.P(c.plan.String(place)))
	for _, t := range slices.Backward(trees) {
		name := plan.P(c.plan.String(t.name))
		if t.file {
			c.plan.Add("place for "+t.name, unix.SYS_MKNODAT, here, name, plan.V(unix.S_IFREG|0o600), plan.V(0))
		} else {
			c.plan.Add("place for "+t.name, unix.SYS_MKDIRAT, here, name, plan.V(0o700))
		}
		c.plan.Add("move to the scratch "+t.name, unix.SYS_MOVE_MOUNT, plan.V(t.fd), empty, here, name, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
		if c.late == nil || t.fd != c.late.proc { // that one was opened long before
			c.closeLast(t.fd)
		}
	}
	for i, m := range c.in.Spec.Mounts {
		if !c.showsHostNamespace(m) {
			continue
		}
		o, name := ocispec.ParseMountOptions(m.Options), plan.P(c.plan.String(scratchMount(i)))
		c.plan.Add("place for "+scratchMount(i), unix.SYS_MKDIRAT, here, name, plan.V(0o700))
		c.plan.Add("mount "+m.Type+" of our namespace", unix.SYS_MOUNT, plan.P(c.plan.String(m.Type)), name, plan.P(c.plan.String(m.Type)), plan.V(o.Flags), plan.P(c.plan.String(strings.Join(o.Data, ","))))
	}
	return c.scratchDevices()
}

// scratchDevices makes the device nodes, which the second child may not. They are mounted with
// mapped owners: root's files belong to the user namespace's root.
func (c *compiler) scratchDevices() error {
	here, dir := plan.V(unix.AT_FDCWD), plan.P(c.plan.String(scratchDevicesDir))
	if len(c.in.Spec.Linux.MaskedPaths) > 0 {
		c.plan.Add("umask 0", unix.SYS_UMASK, plan.V(0))
		c.plan.Add("a null device", unix.SYS_MKNODAT, here, plan.P(c.plan.String(scratchNull)), plan.V(unix.S_IFCHR|0o666), plan.V(unix.Mkdev(1, 3)))
		c.plan.Add("umask", unix.SYS_UMASK, plan.V(0o022))
	}
	nodes, err := c.nodes()
	if err != nil || len(nodes) == 0 {
		return err
	}
	c.plan.Add("umask 0", unix.SYS_UMASK, plan.V(0))
	c.plan.Add("place for devices", unix.SYS_MKDIRAT, here, dir, plan.V(0o755))
	for i, n := range nodes {
		if n.mode&unix.S_IFMT == unix.S_IFIFO {
			continue
		}
		name := plan.P(c.plan.String(scratchDevice(i)))
		c.plan.Add("device "+n.path, unix.SYS_MKNODAT, here, name, plan.V(n.mode), plan.V(n.dev))
		if n.uid != 0 || n.gid != 0 {
			c.plan.Add("owner of "+n.path, unix.SYS_FCHOWNAT, here, name, plan.V(n.uid), plan.V(n.gid), plan.V(unix.AT_SYMLINK_NOFOLLOW))
		}
	}
	src, _ := c.open("open tree of devices", unix.SYS_OPEN_TREE, here, dir, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	// A tmpfs supports this since Linux 6.3. Before, the nodes' owner is nobody, and
	// they work.
	c.mapOwners(src, "devices", &idmap{}).Allow(uint16(unix.EINVAL))
	c.plan.Add("move the devices to the scratch", unix.SYS_MOVE_MOUNT, plan.V(src), plan.P(c.plan.String("")), here, dir, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	c.closeLast(src)
	return nil
}

func scratchDevice(i int) string { return scratchDevicesDir + "/" + strconv.Itoa(i) }

// placeDevices binds the device nodes to their paths.
func (r *rootfs) placeDevices(nodes []node) {
	r.provide("/dev", false)
	for i, n := range nodes {
		if n.mode&unix.S_IFMT == unix.S_IFIFO {
			r.provide(path.Dir(n.path), false)
			fd, _ := r.target(path.Dir(n.path))
			r.makeNode(fd, n)
			r.closeLast(fd)
			continue
		}
		r.provide(n.path, true)
		r.fromScratch(scratchDevice(i), n.path, 0)
	}
	dev, _ := r.target("/dev")
	r.devLinks(dev)
	r.closeLast(dev)
}

// fromScratch mounts at p a mount from the scratch tmpfs.
func (r *rootfs) fromScratch(name, p string, recursive uint64) {
	src, _ := r.open("take "+p+" from the scratch", unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(r.plan.String(name)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive))
	r.attach(src, p)
	r.closeLast(src)
}

// scratchRootMount copies the root's mount, which the kernel has locked in its place on
// the scratch tmpfs, and opens the copy.
func (r *rootfs) scratchRootMount() {
	empty, name, here := plan.P(r.plan.String("")), plan.P(r.plan.String(scratchRoot)), plan.V(unix.AT_FDCWD)
	// The mount that contains the new root must not be shared.
	r.plan.Add("private root", unix.SYS_MOUNT, empty, name, empty, plan.V(unix.MS_PRIVATE), empty)
	src, _ := r.open("copy the root", unix.SYS_OPEN_TREE, here, name, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	r.plan.Add("mount the root", unix.SYS_MOVE_MOUNT, plan.V(src), empty, here, name, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	r.closeLast(src)
}

// showsHostNamespace reports whether a mount shows a namespace that is not the container's own, which
// only the host's root may mount.
func (d *draft) showsHostNamespace(m specs.Mount) bool {
	if d.user == nil {
		return false
	}
	switch m.Type {
	case "sysfs":
		return !d.has(specs.NetworkNamespace)
	case "mqueue":
		return !d.has(specs.IPCNamespace)
	case "proc":
		return !slices.ContainsFunc(d.in.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
	}
	return false
}

func isBind(m specs.Mount, o ocispec.MountOptions) bool {
	return m.Type == "bind" || o.Flags&unix.MS_BIND != 0
}
