package native

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
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// birth is the part of the compiler that brings a process into its namespaces
// and cgroups.
type birth struct{ *compiler }

// userns is the container's user namespace, when it is not ours.
type userns struct {
	path string    // of one that is joined
	slot plan.Slot // of one that the keeper makes
	fd   int       // its descriptor's number in the first child
}

// userNamespace reads what the spec says of it and of mappings.
func (c birth) userNamespace() error {
	l := c.in.Spec.Linux
	at := slices.IndexFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	if len(l.TimeOffsets) > 0 && !c.has(specs.TimeNamespace) {
		return fmt.Errorf("linux.timeOffsets: without a new time namespace: %w", errdefs.ErrInvalidArgument)
	}
	switch {
	case at < 0 && len(l.UIDMappings)+len(l.GIDMappings) > 0:
		return fmt.Errorf("linux.uidMappings: without a user namespace: %w", errdefs.ErrInvalidArgument)
	case at < 0 || !c.in.apart(specs.UserNamespace):
		return nil
	}
	c.user = &userns{path: l.Namespaces[at].Path}
	// In it we have every capability, so none is there to stay by oversight.
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
	c.user.slot = c.User(uids, gids)
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
	slot      plan.Slot // of the user namespace that tells how; 0: the container's
	recursive uint64    // AT_RECURSIVE or 0
}

// idmapOf returns nil for a mount that shows the owners as they are.
func (c birth) idmapOf(m specs.Mount, o ocispec.MountOptions) (*idmap, error) {
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
	case given:
		uids, gids, err := idMaps("mounts[]", m.UIDMappings, m.GIDMappings)
		if err != nil {
			return nil, err
		}
		if im.slot = c.User(uids, gids); len(c.Users()) > plan.MaxUsers {
			return nil, fmt.Errorf("uidMappings: more than %d different mappings: %w", plan.MaxUsers, errdefs.ErrInvalidArgument)
		}
	case c.user == nil:
		return nil, fmt.Errorf("option idmap: without mappings or a user namespace: %w", errdefs.ErrInvalidArgument)
	}
	return im, nil
}

// mappings asks for the user namespaces of id-mapped mounts, before the first
// operation: the keeper makes them.
func (c birth) mappings() error {
	for i, m := range c.in.Spec.Mounts {
		if _, err := c.idmapOf(m, ocispec.ParseMountOptions(m.Options)); err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
	}
	return nil
}

// mapOwners has a detached mount show its files' owners through im.
func (c birth) mapOwners(src int, p string, im *idmap) *plan.Op {
	fd, ok := c.userFDs[im.slot]
	if !ok {
		fd = c.user.fd
	}
	return c.Add("map the owners of "+p, unix.SYS_MOUNT_SETATTR, plan.V(src), plan.P(c.String("")), plan.V(unix.AT_EMPTY_PATH|im.recursive),
		plan.P(c.Words(unix.MOUNT_ATTR_IDMAP, 0, 0, uint64(fd))), plan.V(sizeofMountAttr))
}

// bornTwice is for a process whose pid namespace must belong to a user namespace
// other than ours, or which is to be born in a time namespace with offsets: a
// first child, with our privileges, prepares what the second one may not, goes
// into the namespaces that only its children are in, and makes the second one,
// which carries on. Only that one joins the cgroups, where there may be room for
// one.
func (c birth) bornTwice(flags uint64) error {
	if err := c.mappings(); err != nil {
		return err
	}
	if c.late != nil {
		return c.bornLate(flags)
	}
	c.twice = true
	c.Clone(0, "")
	c.settle(false)
	c.oomScore()
	if err := c.raiseLimits(); err != nil {
		return err
	}
	wait := c.next - 1 // the last descriptor that settle kept
	tasks := c.openTasks()
	cgroup := plan.Slot(0)
	if dir := c.in.Cgroup.Unified; dir != "" {
		cgroup = c.NewSlot()
		c.Add("open "+dir, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String(dir)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)).To(cgroup)
		c.next++
	}
	if err := c.enterUser(); err != nil {
		return err
	}
	own := flags
	if c.user != nil {
		flags &^= unix.CLONE_NEWIPC // its message queues belong to who makes it
	}
	c.AddFork("the second child", flags|unix.CLONE_PARENT, unix.CLONE_INTO_CGROUP, cgroup)
	c.Add("wait for the keeper", unix.SYS_READ, plan.V(wait), plan.P(c.Words(0)), plan.V(1)).Result(1)
	self := plan.P(c.Bytes([]byte("0")))
	for i, fd := range tasks {
		c.Add("join "+c.in.Cgroup.Dirs[i], unix.SYS_WRITE, plan.V(fd), self, plan.V(1)).Result(1)
	}
	if c.has(specs.CgroupNamespace) {
		c.Add("unshare the cgroup namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWCGROUP))
	}
	if c.user == nil {
		return nil
	}
	c.becomeRoot()
	if ipc := own & unix.CLONE_NEWIPC; ipc != 0 {
		c.Add("unshare the ipc namespace", unix.SYS_UNSHARE, plan.V(ipc))
	}
	return nil
}

// enterUser joins what is joined, prepares what only we may, and goes into the
// container's user namespace and to where its time namespace begins.
func (c birth) enterUser() error {
	user := c.joins()
	if c.user != nil {
		if c.user.fd = user; user < 0 {
			c.user.fd = c.userFDs[c.user.slot]
		}
		if err := c.named(false); err != nil {
			return err
		}
		if err := c.stage(); err != nil {
			return err
		}
		c.Add("join the user namespace", unix.SYS_SETNS, plan.V(c.user.fd), plan.V(unix.CLONE_NEWUSER))
	}
	if c.has(specs.TimeNamespace) {
		return c.timeNamespace()
	}
	return nil
}

// openTasks opens what a process joins its v1 cgroups by. Who has opened it
// counts, not who writes.
func (c birth) openTasks() (fds []int) {
	for _, d := range c.in.Cgroup.Dirs {
		fd, _ := c.open("open "+d+"/tasks", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String(d+"/tasks")), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
		fds = append(fds, fd)
	}
	return fds
}

// becomeRoot takes the ids that are root's in the user namespace. What is made
// from now on belongs to it; what is ours is somebody else's.
func (c birth) becomeRoot() {
	zero := plan.V(0)
	c.Add("root's group", unix.SYS_SETRESGID, zero, zero, zero)
	c.Add("no other groups", unix.SYS_SETGROUPS, zero, zero)
	c.Add("root's user", unix.SYS_SETRESUID, zero, zero, zero)
}

// raiseLimits lifts hard limits while that may be allowed; inside a user
// namespace it never is. Small ones are left for the end: nothing that is opened
// on the way must fail by them.
func (c birth) raiseLimits() error {
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
			c.Add("raise limit "+l.Type, unix.SYS_PRLIMIT64, plan.V(0), plan.V(r), plan.P(c.Words(hard, hard)), plan.V(0)).Allow(uint16(unix.EPERM))
		}
	}
	return nil
}

// timeNamespace makes one for the next child and sets its clocks, which is
// possible until somebody is in it.
func (c birth) timeNamespace() error {
	c.Add("unshare the time namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWTIME))
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
	fd, _ := c.open("open "+file, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String(file)), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
	c.Add("set the clocks", unix.SYS_WRITE, plan.V(fd), plan.P(c.String(text)), plan.V(len(text))).Result(uint64(len(text)))
	c.shut(fd)
	return nil
}

// The stage is a tmpfs over the root filesystem's place, in a mount namespace of
// ours, that holds a mount of everything that comes from the host. The second
// child's mount namespace is a copy of that one, in which, since it belongs to a
// less privileged user namespace, the kernel has locked what each mount forbids:
// the container cannot lift it.
const (
	stagedRoot    = "r"
	stagedDevices = "d"
	stagedNull    = "n" // hides files
)

// stagedMount is the name of spec.mounts[i] on the stage.
func stagedMount(i int) string { return strconv.Itoa(i) }

func (c birth) stage() error {
	empty, here := plan.P(c.String("")), plan.V(unix.AT_FDCWD)
	c.Add("unshare the mount namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWNS))
	c.Add("slave of the host's mounts", unix.SYS_MOUNT, empty, plan.P(c.String("/")), empty, plan.V(unix.MS_SLAVE|unix.MS_REC), empty)
	type tree struct {
		fd   int
		name string
		file bool
	}
	root, _ := c.open("open tree "+c.in.Root, unix.SYS_OPEN_TREE, here, plan.P(c.String(c.in.Root)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	trees := []tree{{root, stagedRoot, false}}
	for i, m := range c.in.Spec.Mounts {
		o := ocispec.ParseMountOptions(m.Options)
		if !isBind(m, o) {
			continue
		}
		src, file, err := c.source(m, o)
		if err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		trees = append(trees, tree{src, stagedMount(i), file})
	}
	if c.late != nil && c.late.proc >= 0 {
		trees = append(trees, tree{c.late.proc, stagedMount(slices.IndexFunc(c.in.Spec.Mounts, isProc)), false})
	}
	c.Add("stage", unix.SYS_MOUNT, plan.P(c.String("stage")), plan.P(c.String(c.in.Root)), plan.P(c.String("tmpfs")), plan.V(0), plan.P(c.String("mode=755,size=1m")))
	c.Add("chdir to the stage", unix.SYS_CHDIR, plan.P(c.String(c.in.Root)))
	for _, t := range slices.Backward(trees) {
		name := plan.P(c.String(t.name))
		if t.file {
			c.Add("place for "+t.name, unix.SYS_MKNODAT, here, name, plan.V(unix.S_IFREG|0o600), plan.V(0))
		} else {
			c.Add("place for "+t.name, unix.SYS_MKDIRAT, here, name, plan.V(0o700))
		}
		c.Add("stage "+t.name, unix.SYS_MOVE_MOUNT, plan.V(t.fd), empty, here, name, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
		if c.late == nil || t.fd != c.late.proc { // opened long before
			c.shut(t.fd)
		}
	}
	for i, m := range c.in.Spec.Mounts {
		if !c.ours(m) {
			continue
		}
		o, name := ocispec.ParseMountOptions(m.Options), plan.P(c.String(stagedMount(i)))
		c.Add("place for "+stagedMount(i), unix.SYS_MKDIRAT, here, name, plan.V(0o700))
		c.Add("mount "+m.Type+" of our namespace", unix.SYS_MOUNT, plan.P(c.String(m.Type)), name, plan.P(c.String(m.Type)), plan.V(o.Flags), plan.P(c.String(strings.Join(o.Data, ","))))
	}
	return c.stageDevices()
}

// stageDevices makes the device nodes, which the second child may not. They are
// shown through the user namespace: root's are its root's.
func (c birth) stageDevices() error {
	here, dir := plan.V(unix.AT_FDCWD), plan.P(c.String(stagedDevices))
	if len(c.in.Spec.Linux.MaskedPaths) > 0 {
		c.Add("umask 0", unix.SYS_UMASK, plan.V(0))
		c.Add("a null device", unix.SYS_MKNODAT, here, plan.P(c.String(stagedNull)), plan.V(unix.S_IFCHR|0o666), plan.V(unix.Mkdev(1, 3)))
		c.Add("umask", unix.SYS_UMASK, plan.V(0o022))
	}
	nodes, err := c.deviceFiles().nodes()
	if err != nil || len(nodes) == 0 {
		return err
	}
	c.Add("umask 0", unix.SYS_UMASK, plan.V(0))
	c.Add("place for devices", unix.SYS_MKDIRAT, here, dir, plan.V(0o755))
	for i, n := range nodes {
		if n.mode&unix.S_IFMT == unix.S_IFIFO {
			continue
		}
		name := plan.P(c.String(stagedDevice(i)))
		c.Add("device "+n.path, unix.SYS_MKNODAT, here, name, plan.V(n.mode), plan.V(n.dev))
		if n.uid != 0 || n.gid != 0 {
			c.Add("owner of "+n.path, unix.SYS_FCHOWNAT, here, name, plan.V(n.uid), plan.V(n.gid), plan.V(unix.AT_SYMLINK_NOFOLLOW))
		}
	}
	src, _ := c.open("open tree of devices", unix.SYS_OPEN_TREE, here, dir, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	// Before Linux 6.3 a tmpfs cannot; its nodes are nobody's then, and work.
	c.mapOwners(src, "devices", &idmap{}).Allow(uint16(unix.EINVAL))
	c.Add("stage the devices", unix.SYS_MOVE_MOUNT, plan.V(src), plan.P(c.String("")), here, dir, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	c.shut(src)
	return nil
}

func stagedDevice(i int) string { return stagedDevices + "/" + strconv.Itoa(i) }

// placeDevices binds the staged nodes to their places.
func (c deviceFiles) placeDevices(nodes []node) {
	c.provide("/dev", false)
	for i, n := range nodes {
		if n.mode&unix.S_IFMT == unix.S_IFIFO {
			c.provide(path.Dir(n.path), false)
			fd, _ := c.target(path.Dir(n.path))
			c.makeNode(fd, n)
			c.shut(fd)
			continue
		}
		c.provide(n.path, true)
		c.birth().fromStage(stagedDevice(i), n.path, 0)
	}
	dev, _ := c.target("/dev")
	c.devLinks(dev)
	c.shut(dev)
}

// fromStage mounts at p what stands on the stage.
func (c birth) fromStage(name, p string, recursive uint64) {
	src, _ := c.open("take "+p+" from the stage", unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(c.String(name)), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive))
	c.move(src, p)
	c.shut(src)
}

// stagedRootMount makes the root, which the kernel has locked to its place on
// the stage, a mount of its own, and opens it.
func (c birth) stagedRootMount() {
	empty, name, here := plan.P(c.String("")), plan.P(c.String(stagedRoot)), plan.V(unix.AT_FDCWD)
	// The mount below the one that becomes the root must not be shared.
	c.Add("private root", unix.SYS_MOUNT, empty, name, empty, plan.V(unix.MS_PRIVATE), empty)
	src, _ := c.open("copy the root", unix.SYS_OPEN_TREE, here, name, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	c.Add("mount the root", unix.SYS_MOVE_MOUNT, plan.V(src), empty, here, name, plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	c.shut(src)
}

// ours reports whether a mount shows a namespace that is not the container's
// own: only we may mount it.
func (c birth) ours(m specs.Mount) bool {
	if c.user == nil {
		return false
	}
	switch m.Type {
	case "sysfs":
		return !c.has(specs.NetworkNamespace)
	case "mqueue":
		return !c.has(specs.IPCNamespace)
	case "proc":
		return !slices.ContainsFunc(c.in.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
	}
	return false
}

func isBind(m specs.Mount, o ocispec.MountOptions) bool {
	return m.Type == "bind" || o.Flags&unix.MS_BIND != 0
}
