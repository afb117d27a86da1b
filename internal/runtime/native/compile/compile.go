package compile

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// Host has the compiler's facts about the node.
type Host struct {
	// BaseNamespace is the file of the base namespace, the almost empty mount namespace that
	// containers start from. If it is "", they start from a copy of the host's.
	BaseNamespace string
	// Bounding is the agent's own bounding set, a bit per capability, which nothing it
	// starts can exceed. LastCap is the highest capability of this kernel.
	Bounding uint64
	LastCap  int
	Kcore    bool // /proc/kcore exists
	// ProcPidNS means that the kernel can mount a proc for another pid namespace than
	// the mounter's (Linux 6.17).
	ProcPidNS bool
	// Landlock is the version of Landlock's interface that the kernel offers; 0 is none.
	Landlock int
	// Initramfs means that the node's root is the kernel's initial file system, which
	// pivot_root cannot replace. Views are then the mounts that a container must not be
	// able to reach below its own root: see moveRoot.
	Initramfs bool
	Views     []string
	// Hierarchies are the mounted v1 hierarchies in a fixed order. There are none on a
	// node that has only the v2 tree.
	Hierarchies []Hierarchy
	// Unified has the options of the v2 tree. A mount in the host's cgroup namespace without them would change them for
	// the whole host.
	Unified string
	// LockedKeyring means that the process that forks containers' processes has an empty session
	// keyring that no program may use. A process keeps that one when its user may have no further
	// keyring; without it, the process does not start.
	LockedKeyring bool
}

// Hierarchy is one cgroup v1 hierarchy.
type Hierarchy struct {
	Name    string // directory below /sys/fs/cgroup, such as "cpu" or "systemd"
	Options string // for mount(2), such as "cpu" or "none,name=systemd"
}

// Cgroup names the cgroups of a new process.
type Cgroup struct {
	// Dirs are absolute directories of v1 hierarchies, which the child joins itself.
	Dirs []string
	// Unified is the absolute directory in the v2 tree; "" means none.
	Unified string
	// Own maps a Hierarchy's name ("" for v2) to the directory that a cgroup mount shows
	// when there is no cgroup namespace.
	Own map[string]string
	// Delegated says that the process may write to its own cgroup: on v1, to that of systemd's hierarchy.
	Delegated bool
}

// Input describes one container to the compiler.
type Input struct {
	ID     string
	Bundle string // reported to a seccomp listener
	Spec   *specs.Spec
	Root   string // absolute path of the mounted root filesystem
	Cgroup Cgroup
	Host   Host
	// Park makes the process wait before its program until the keeper releases it, and
	// also before pivot_root if there are hooks that run during creation.
	Park bool
	// Preserve is how many descriptors, from 3 on, the program gets from the process
	// that forks it.
	Preserve int
	// Given has the slot of each of these descriptors when they come with the launch; nil when they
	// are at their numbers already.
	Given []plan.Slot
	// Confine, unless nil, makes the program hold nothing but its descriptors. The last one of them
	// is the program's own file for execve; the program does not keep it.
	Confine *Confine
	// KeepKeyring gives the program the session keyring of the process that forks it.
	KeepKeyring bool
	// Borrow allows a container without a mount namespace of its own: it uses one that
	// it joins, or that of the process that forks it. Its mounts are made there, on the
	// root filesystem bound over itself, and stay. Its root is changed by chroot, which
	// CAP_SYS_CHROOT can undo.
	Borrow bool
}

// Output is a compiled plan.
type Output struct {
	Plan []byte
	// Points must exist in the root filesystem before the plan runs; see MakePoints.
	Points []Point
	// Mapped means that the plan makes the points itself, if the root filesystem belongs
	// to its user namespace's root; see MakePoints.
	Mapped   bool
	Warnings []string
	// Stops means that the process waits before pivot_root, for hooks.
	Stops bool
}

// Point is the path of a mount in the root filesystem.
type Point struct {
	Path string // as the container sees it
	File bool   // a regular file instead of a directory
}

// The numbers of the plan's own descriptors: the error pipe, the parking pipe and the console
// socket are moved to the first numbers after the standard streams and the preserved descriptors.
// Then all others are closed, so the number of each later descriptor can be computed. See
// Input.ownFD.
const (
	fdError   = 3
	fdPark    = 4
	fdConsole = 5
	fdFirst   = 6
)

// sizeofMountAttr is the size of struct mount_attr.
const sizeofMountAttr = 32

// draft is the plan so far, with the state that all parts of the compiler share.
type draft struct {
	plan plan.Builder
	in   Input
	next int     // number of the next descriptor to be opened
	user *userns // the container's user namespace; nil for the host's
	late *late   // for a process that enters its pid namespace last; otherwise nil
	// userFDs are the descriptors of the user namespaces that the keeper makes.
	userFDs map[plan.Slot]int
}

// compiler builds one plan: it brings the process into its cgroups and namespaces, has a rootfs for its files, and makes
// it the program's process.
type compiler struct {
	draft
	out      Output
	labels   []labelFile
	file     string          // path of the program; "" to search for Args[0]
	twice    bool            // a first child does the work that the second one may not do
	filter   *seccomp.Filter // nil for none
	listener *listener       // of a filter with SCMP_ACT_NOTIFY
}

// labelFile is a file in the host's /proc that is opened early, because the container's
// /proc cannot be trusted, and written late.
type labelFile struct {
	slot plan.Slot
	text string
}

// Container turns a container's spec into a plan. The error is InvalidArgument for a spec that is
// wrong, and NotImplemented for one that this runtime does not support; both name the
// field.
func Container(in Input) (Output, error) {
	if err := refuse(in.Spec); err != nil {
		return Output{}, err
	}
	if strings.ContainsRune(in.Root, 0) || !filepath.IsAbs(in.Root) {
		return Output{}, fmt.Errorf("root.path %q: not absolute: %w", in.Root, errdefs.ErrInvalidArgument)
	}
	if err := in.checkMountLabel(); err != nil {
		return Output{}, err
	}
	c := &compiler{draft: draft{in: in, next: fdFirst + in.Preserve}}
	c.plan.Give(in.fromLaunch())
	if err := c.create(); err != nil {
		return Output{}, err
	}
	if c.late == nil {
		c.plan.Add("setsid", unix.SYS_SETSID)
	}
	c.openLabels()
	state := specs.State{Version: in.Spec.Version, ID: in.ID, Status: specs.StateCreating, Pid: selfPid, Bundle: in.Bundle, Annotations: in.Spec.Annotations}
	if err := c.prepareFilter(state); err != nil {
		return Output{}, err
	}
	if err := c.setNames(true); err != nil {
		return Output{}, err
	}
	if err := c.filesystem(); err != nil {
		return Output{}, err
	}
	if err := c.process(in.Spec.Process); err != nil {
		return Output{}, err
	}
	return c.finish()
}

// finish encodes the plan, and checks that the kernel and the keeper accept its size.
func (c *compiler) finish() (Output, error) {
	if s, bad := c.plan.HoldsNUL(); bad {
		return Output{}, fmt.Errorf("spec: %q holds a NUL: %w", s, errdefs.ErrInvalidArgument)
	}
	c.out.Plan, c.out.Stops, c.out.Mapped = c.plan.Encode(), c.in.stops(), c.user != nil
	if len(c.out.Plan) > plan.MaxSize || c.plan.Len() > plan.MaxOps {
		return Output{}, fmt.Errorf("spec: too large: %d operations, %d bytes: %w", c.plan.Len(), len(c.out.Plan), errdefs.ErrInvalidArgument)
	}
	return c.out, nil
}

// ownFD returns the number of one of the plan's own descriptors.
func (in *Input) ownFD(fd int) plan.Arg { return plan.V(fd + in.Preserve) }

// create adds the operations that bring the process into its cgroups and namespaces.
func (c *compiler) create() error {
	flags, err := c.namespaces()
	if err != nil {
		return err
	}
	if JoinsPid(c.in.Spec) {
		if c.late, err = newLate(c.in.Spec); err != nil {
			return err
		}
	}
	if c.user != nil || c.has(specs.TimeNamespace) {
		return c.createTwice(flags)
	}
	if err := c.mappings(); err != nil {
		return err
	}
	if c.in.startsFromBase() {
		flags &^= unix.CLONE_NEWNS
	}
	c.plan.Clone(flags, c.in.Cgroup.Unified)
	c.placeStreams(false)
	c.oomScore()
	c.joinCgroups(c.in.Cgroup.Dirs)
	if c.has(specs.CgroupNamespace) {
		c.plan.Add("unshare the cgroup namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWCGROUP))
	}
	c.joinNamespaces()
	return nil
}

// setNames sets hostname, domain name and sysctls: those of the container's own namespaces
// if own is set, otherwise those of joined ones. They need different privileges.
func (c *compiler) setNames(own bool) error {
	if err := c.hostname(own); err != nil {
		return err
	}
	return c.sysctls(own)
}

// placeStreams puts the standard streams in place and closes all descriptors inherited from
// the keeper. Until then the child is a copy of the keeper and must not be readable from
// the container's pid namespace, so it makes itself undumpable first.
//
// With target set, the pidfd of an exec's target gets the next number, which settle
// returns.
func (c *compiler) placeStreams(target bool) (fd int) {
	c.plan.Add("not dumpable", unix.SYS_PRCTL, plan.V(unix.PR_SET_DUMPABLE), plan.V(0))
	if target {
		fd = c.next
		c.next++
		c.plan.Add("target", unix.SYS_DUP3, plan.S(plan.SlotTarget), plan.V(fd), plan.V(unix.O_CLOEXEC))
	}
	if !c.in.Spec.Process.Terminal {
		for i, name := range []string{"stdin", "stdout", "stderr"} {
			c.plan.Add(name, unix.SYS_DUP3, plan.S(plan.Slot(plan.SlotStdin+i)), plan.V(i), plan.V(0))
			labelPipe(c, i, name)
		}
	}
	c.placeGiven()
	c.plan.Add("error pipe", unix.SYS_DUP3, plan.S(plan.SlotError), c.in.ownFD(fdError), plan.V(unix.O_CLOEXEC)).To(plan.SlotError)
	if c.in.Park {
		c.plan.Add("parking pipe", unix.SYS_DUP3, plan.S(plan.SlotPark), c.in.ownFD(fdPark), plan.V(unix.O_CLOEXEC)).To(plan.SlotPark)
	} else {
		c.plan.Add("no parking pipe", unix.SYS_DUP3, plan.S(plan.SlotError), c.in.ownFD(fdPark), plan.V(unix.O_CLOEXEC))
	}
	if c.in.Spec.Process.Terminal {
		c.plan.Add("console socket", unix.SYS_DUP3, plan.S(plan.SlotConsole), c.in.ownFD(fdConsole), plan.V(unix.O_CLOEXEC)).To(plan.SlotConsole)
	} else {
		c.plan.Add("no console socket", unix.SYS_DUP3, plan.S(plan.SlotError), c.in.ownFD(fdConsole), plan.V(unix.O_CLOEXEC))
	}
	c.userFDs = map[plan.Slot]int{}
	for _, u := range c.plan.Users() {
		c.userFDs[u.Slot] = c.next
		c.plan.Add("user namespace", unix.SYS_DUP3, plan.S(u.Slot), plan.V(c.next), plan.V(unix.O_CLOEXEC)).To(u.Slot)
		c.next++
	}
	if c.twice || c.late != nil {
		c.plan.Add("pipe to wait for", unix.SYS_DUP3, plan.S(plan.SlotGo), plan.V(c.next), plan.V(unix.O_CLOEXEC)).To(plan.SlotGo)
		if c.late != nil {
			c.late.wait = c.next
		}
		c.next++
	}
	c.plan.Add("close the keeper's descriptors", unix.SYS_CLOSE_RANGE, plan.V(c.next), plan.V(^uint32(0)), plan.V(0))
	return fd
}

// open adds a call that opens a descriptor, which gets the next number, and returns that
// number.
func (d *draft) open(name string, nr uintptr, args ...plan.Arg) (fd int, index int) {
	fd, index = d.next, d.plan.Len()
	d.next++
	d.plan.Add(name, nr, args...).Result(uint64(fd))
	return fd, index
}

// closeLast closes the last opened descriptor.
func (d *draft) closeLast(fd int) {
	if fd != d.next-1 {
		panic(fmt.Sprintf("compile: close of %d while %d is open", fd, d.next-1))
	}
	d.next--
	d.plan.Add("close", unix.SYS_CLOSE, plan.V(fd))
}

// joinCgroups moves the child into its cgroups. The child writes 0, which means itself:
// another pid would take the kernel's global lock, which waits for a grace period; and a
// thread of the keeper must never be in a container's cgroup.
func (c *compiler) joinCgroups(dirs []string) {
	for _, d := range dirs {
		c.join(d, "tasks")
	}
}

func (d *draft) join(dir, file string) {
	fd, _ := d.open("open "+dir+"/"+file, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(d.plan.String(dir+"/"+file)), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
	d.plan.Add("join "+dir, unix.SYS_WRITE, plan.V(fd), plan.P(d.plan.String("0")), plan.V(1)).Result(1)
	d.closeLast(fd)
}

var cloneFlags = map[specs.LinuxNamespaceType]uint64{
	specs.PIDNamespace:     unix.CLONE_NEWPID,
	specs.NetworkNamespace: unix.CLONE_NEWNET,
	specs.MountNamespace:   unix.CLONE_NEWNS,
	specs.IPCNamespace:     unix.CLONE_NEWIPC,
	specs.UTSNamespace:     unix.CLONE_NEWUTS,
	specs.CgroupNamespace:  unix.CLONE_NEWCGROUP,
	specs.UserNamespace:    unix.CLONE_NEWUSER,
	specs.TimeNamespace:    unix.CLONE_NEWTIME,
}

// namespaces returns the flags of the namespaces that clone makes. The cgroup namespace
// is made later, after the cgroups are joined, because it is rooted in them.
func (c *compiler) namespaces() (flags uint64, err error) {
	seen := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range c.in.Spec.Linux.Namespaces {
		f, ok := cloneFlags[ns.Type]
		if !ok || seen[ns.Type] {
			return 0, fmt.Errorf("linux.namespaces[%d]: %q: unknown or given twice: %w", i, ns.Type, errdefs.ErrInvalidArgument)
		}
		seen[ns.Type] = true
		if ns.Path == "" && ns.Type != specs.CgroupNamespace && ns.Type != specs.UserNamespace && ns.Type != specs.TimeNamespace {
			flags |= f
		}
		if ns.Path != "" && !path.IsAbs(ns.Path) {
			return 0, fmt.Errorf("linux.namespaces[%d].path: %q is not absolute: %w", i, ns.Path, errdefs.ErrInvalidArgument)
		}
	}
	if c.in.borrows() && (!c.in.Borrow || seen[specs.UserNamespace] || seen[specs.TimeNamespace]) {
		return 0, notDone("linux.namespaces (no mount namespace, or one that is joined)")
	}
	return flags, c.userNamespace()
}

// borrows reports whether the container has no mount namespace of its own.
func (in *Input) borrows() bool {
	return !slices.ContainsFunc(in.Spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.MountNamespace && ns.Path == "" })
}

// has reports whether the spec asks for a new namespace of this kind.
func (d *draft) has(t specs.LinuxNamespaceType) bool {
	for _, ns := range d.in.Spec.Linux.Namespaces {
		if ns.Type == t {
			return ns.Path == ""
		}
	}
	return false
}

// joinNamespaces enters the namespaces given by path. All are opened before the first is entered.
// The user namespace is only opened, and its descriptor returned.
func (c *compiler) joinNamespaces() (user int) {
	type join struct {
		fd   int
		flag uint64
		name string
	}
	var all []join
	user = -1
	open := func(p string) int {
		fd, _ := c.open("open "+p, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(p)), plan.V(unix.O_RDONLY|unix.O_CLOEXEC))
		return fd
	}
	if c.late != nil {
		c.late.joinPid(c)
	}
	if c.user != nil && c.user.path != "" {
		user = open(c.user.path)
	}
	for _, ns := range c.in.Spec.Linux.Namespaces {
		switch {
		case ns.Path == "" || ns.Type == specs.UserNamespace:
		case ns.Type == specs.PIDNamespace && c.late != nil:
		case ns.Type == specs.PIDNamespace && !c.twice:
			c.plan.JoinPid(ns.Path)
		default:
			all = append(all, join{open(ns.Path), cloneFlags[ns.Type], string(ns.Type)})
		}
	}
	for _, j := range all {
		c.plan.Add("join the "+j.name+" namespace", unix.SYS_SETNS, plan.V(j.fd), plan.V(j.flag))
	}
	for i := len(all) - 1; i >= 0; i-- {
		c.closeLast(all[i].fd)
	}
	return user
}

// hostname sets the hostname and domain name. Without a UTS namespace of its own the
// container would rename the host.
func (c *compiler) hostname(own bool) error {
	if c.user != nil && own != c.has(specs.UTSNamespace) || c.user == nil && !own {
		return nil
	}
	if !c.in.ownNamespace(specs.UTSNamespace) && c.in.Spec.Hostname+c.in.Spec.Domainname != "" {
		return fmt.Errorf("hostname: without a UTS namespace of its own: %w", errdefs.ErrInvalidArgument)
	}
	if name := c.in.Spec.Hostname; name != "" {
		c.plan.Add("sethostname", unix.SYS_SETHOSTNAME, plan.P(c.plan.String(name)), plan.V(len(name)))
	}
	if name := c.in.Spec.Domainname; name != "" {
		c.plan.Add("setdomainname", unix.SYS_SETDOMAINNAME, plan.P(c.plan.String(name)), plan.V(len(name)))
	}
	return nil
}

// ownNamespace reports whether the container has a namespace of this kind that is not
// the host's.
func (in *Input) ownNamespace(t specs.LinuxNamespaceType) bool {
	for _, ns := range in.Spec.Linux.Namespaces {
		if ns.Type == t {
			return ns.Path == "" || !in.Host.owns(ns)
		}
	}
	return false
}

// openLabels opens the files for setting labels right before the program runs. They must be in the
// host's /proc: the container could put other files in their place in its own.
func (c *compiler) openLabels() {
	p := c.in.Spec.Process
	label := func(file, text string) {
		slot := c.plan.NewSlot()
		c.plan.Add("open "+file, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(file)), plan.V(unix.O_WRONLY|unix.O_CLOEXEC)).To(slot)
		c.next++ // it stays open until execve
		c.labels = append(c.labels, labelFile{slot, text})
	}
	if p.ApparmorProfile != "" {
		label("/proc/thread-self/attr/apparmor/exec", "exec "+p.ApparmorProfile)
	}
	if p.SelinuxLabel != "" {
		label("/proc/thread-self/attr/exec", p.SelinuxLabel)
	}
}

// oomScore sets oom_score_adj while the process may still open the host's /proc.
func (c *compiler) oomScore() {
	p := c.in.Spec.Process
	if p.OOMScoreAdj != nil {
		fd, _ := c.open("open oom_score_adj", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String("/proc/self/oom_score_adj")), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
		text := fmt.Sprint(*p.OOMScoreAdj)
		// Without CAP_SYS_RESOURCE it cannot be lowered. The agent has warned of that when it made
		// the spec.
		c.plan.Add("write oom_score_adj", unix.SYS_WRITE, plan.V(fd), plan.P(c.plan.String(text)), plan.V(len(text))).Allow(uint16(unix.EACCES))
		c.closeLast(fd)
	}
}
