package compile

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/weaken"
)

// late is the part of a plan for a process that joins a pid namespace with other processes: that of
// an exec, or of a container that shares one. Those processes see a new one from its first moment,
// with its root and descriptors, and with CAP_SYS_PTRACE can take it over. Therefore a first child,
// which stays in the host's pid namespace, joins everything else, drops all rights, and closes all
// descriptors but the program's. Then it makes a second child in the pid namespace, which
// continues.
type late struct {
	wait  int // descriptor that the second child reads until the keeper has found it
	pidns int // descriptor of the pid namespace, for a container; -1 for an exec
	proc  int // descriptor of a proc of the pid namespace, to be mounted; -1 for none
	// early makes the second child install the seccomp filter and drop the rights itself. That is
	// needed for a filter that removes a right at its installation, because such a filter would
	// keep the first child from making the second. The second child is confined to the container's
	// namespaces nevertheless.
	early   bool
	spec    *specs.Spec
	limit   *specs.POSIXRlimit // of the number of processes
	resets  bool               // the scheduling policy is not inherited by children
	notify  []plan.Ptr         // where the pid goes in the message to a seccomp listener
	control bool
}

// JoinsPid reports whether the spec joins an existing pid namespace.
func JoinsPid(s *specs.Spec) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace && n.Path != "" })
}

// newLate returns nil if this defence is switched off (package weaken).
func newLate(s *specs.Spec) (*late, error) {
	if weaken.Off(weaken.PidNamespaceLast) {
		return nil, nil //nolint:nilnil // none is the other answer
	}
	if p := s.Process.Scheduler; p != nil && p.Policy == specs.SchedDeadline {
		// A process with SCHED_DEADLINE cannot fork, and without rights none can get it.
		return nil, notDone("process.scheduler.policy (SCHED_DEADLINE in a pid namespace that is joined)")
	}
	return &late{wait: -1, pidns: -1, proc: -1, spec: s, control: s.Process.Terminal}, nil
}

// joinPid makes the next child start in the pid namespace. It keeps the namespace's
// descriptor, for mounting a proc.
func (l *late) joinPid(c *compiler) {
	at := slices.IndexFunc(c.in.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
	file := c.in.Spec.Linux.Namespaces[at].Path
	l.pidns, _ = c.open("open "+file, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(file)), plan.V(unix.O_RDONLY|unix.O_CLOEXEC))
	if !c.in.Host.ProcPidNS && slices.ContainsFunc(c.in.Spec.Mounts, isProc) {
		process, ok := strings.CutSuffix(file, "/ns/pid")
		if !ok { // it is pinned
			process = c.in.Host.first(file)
		}
		if process != "" {
			l.takeProc(c, process+"/ns/mnt")
		}
	}
	c.plan.Add("join the pid namespace", unix.SYS_SETNS, plan.V(l.pidns), plan.V(unix.CLONE_NEWPID))
}

func isProc(m specs.Mount) bool {
	return m.Type == "proc" && !isBind(m, ocispec.ParseMountOptions(m.Options))
}

// procOption returns the option that mounts a proc of the pid namespace from outside
// that namespace.
func (l *late) procOption() string { return "pidns=/proc/self/fd/" + strconv.Itoa(l.pidns) }

// takeProc copies the proc mount of the process that the pid namespace's file belongs to, for
// kernels that cannot mount a proc for another pid namespace than the mounter's. That process's
// container chooses the mount at its /proc, so takeProc checks that it is a proc, and that its pid
// 1 is in the right pid namespace.
func (l *late) takeProc(c *compiler, mnt string) {
	here, empty := plan.V(unix.AT_FDCWD), plan.P(c.plan.String(""))
	file := func(name string) int {
		fd, _ := c.open("open "+name, unix.SYS_OPENAT, here, plan.P(c.plan.String(name)), plan.V(unix.O_RDONLY|unix.O_CLOEXEC))
		return fd
	}
	own, other := file("/proc/self/ns/mnt"), file(mnt)
	c.plan.Add("join the mount namespace of the proc", unix.SYS_SETNS, plan.V(other), plan.V(unix.CLONE_NEWNS))
	how := c.plan.Words(uint64(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	dir, _ := c.open("open the proc", unix.SYS_OPENAT2, here, plan.P(c.plan.String("/proc")), plan.P(how), plan.V(unix.SizeofOpenHow))
	fs := c.plan.Bytes(make([]byte, 256))
	c.plan.Add("file system of the proc", unix.SYS_FSTATFS, plan.V(dir), plan.P(fs))
	c.plan.AddSame("proc of the pid namespace: the process that holds it has another file system there", fs, c.plan.Words(unix.PROC_SUPER_MAGIC), 8)
	const ino, dev = 32, 136 // in struct statx
	theirs, wanted := c.plan.Bytes(make([]byte, 256)), c.plan.Bytes(make([]byte, 256))
	c.plan.Add("pid namespace of the proc", unix.SYS_STATX, plan.V(dir), plan.P(c.plan.String("1/ns/pid")), plan.V(0), plan.V(unix.STATX_INO), plan.P(theirs))
	c.plan.Add("the pid namespace itself", unix.SYS_STATX, plan.V(l.pidns), empty, plan.V(unix.AT_EMPTY_PATH), plan.V(unix.STATX_INO), plan.P(wanted))
	c.plan.AddSame("proc of the pid namespace: that of another", theirs+ino, wanted+ino, 8)
	c.plan.AddSame("proc of the pid namespace: that of another", theirs+dev, wanted+dev, 8)
	tree, _ := c.open("copy the proc", unix.SYS_OPEN_TREE, plan.V(dir), empty, plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	at := slices.IndexFunc(c.in.Spec.Mounts, isProc)
	set := attrsOf(ocispec.ParseMountOptions(c.in.Spec.Mounts[at].Options).Flags)
	all := uint64(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR__ATIME)
	c.plan.Add("attributes of the proc", unix.SYS_MOUNT_SETATTR, plan.V(tree), empty, plan.V(unix.AT_EMPTY_PATH),
		plan.P(c.plan.Words(set, all&^set|atime(set), unix.MS_PRIVATE, 0)), plan.V(sizeofMountAttr))
	c.plan.Add("join our mount namespace", unix.SYS_SETNS, plan.V(own), plan.V(unix.CLONE_NEWNS))
	c.plan.Add("keep the proc", unix.SYS_DUP3, plan.V(tree), plan.V(own), plan.V(unix.O_CLOEXEC))
	for _, fd := range []int{tree, dir, other} {
		c.closeLast(fd)
	}
	l.proc = own
}

// placeProc mounts the proc that takeProc has copied.
func (l *late) placeProc(r *rootfs, i int, m specs.Mount, o ocispec.MountOptions) error {
	if l.proc < 0 || i != slices.IndexFunc(r.in.Spec.Mounts, isProc) || len(o.Data) > 0 {
		return notDone("a proc of a joined pid namespace whose first process is not in sight, a second one, or one with options, before Linux 6.17")
	}
	if r.user != nil {
		r.fromScratch(scratchMount(i), m.Destination, 0)
	} else {
		r.attach(l.proc, m.Destination)
	}
	r.setAttrs(m.Destination, 0, o.RecursiveSet, o.RecursiveClear, uint64(o.Propagation))
	return nil
}

// createLate is createTwice for a process that joins its pid namespace: one process does
// all that the two of createTwice do.
func (c *compiler) createLate(flags uint64) error {
	c.plan.Clone(0, c.in.Cgroup.Unified)
	c.placeStreams(false)
	c.oomScore()
	if err := c.raiseLimits(); err != nil {
		return err
	}
	c.joinCgroups(c.in.Cgroup.Dirs)
	if err := c.enterUser(); err != nil {
		return err
	}
	last := uint64(0)
	if c.user != nil {
		last = flags & unix.CLONE_NEWIPC // message queues belong to the process that makes the namespace
	}
	if c.has(specs.CgroupNamespace) {
		flags |= unix.CLONE_NEWCGROUP
	}
	if flags &^= last; flags != 0 {
		c.plan.Add("unshare namespaces", unix.SYS_UNSHARE, plan.V(flags))
	}
	if c.user != nil {
		c.becomeRoot()
	}
	if last != 0 {
		c.plan.Add("unshare the ipc namespace", unix.SYS_UNSHARE, plan.V(last))
	}
	return nil
}

// keepDescriptors moves the descriptors that the second child needs to numbers that close does not
// touch. It comes before the resource limits, which may forbid such numbers.
func (l *late) keepDescriptors(c *compiler) {
	nnp := l.spec.Process.NoNewPrivileges
	l.early = c.filter != nil && !nnp && (c.filter.Notify || !l.filterAllows(c))
	c.plan.Add("keep the pipe to wait for", unix.SYS_DUP3, plan.V(l.wait), c.in.ownFD(fdConsole), plan.V(unix.O_CLOEXEC))
	if c.listener != nil {
		c.plan.Add("keep the listener's socket", unix.SYS_DUP3, plan.V(c.listener.socket), c.in.ownFD(fdFirst), plan.V(unix.O_CLOEXEC))
		c.listener.socket = fdFirst + c.in.Preserve
	}
}

// filterAllows reports whether the filter lets the first child make the second one, and the
// second one do the rest.
func (l *late) filterAllows(c *compiler) bool {
	ok := func(nr uintptr, args ...uint64) bool {
		var a [6]uint64
		copy(a[:], args)
		return c.filter.Allows(uint32(nr), a)
	}
	return ok(unix.SYS_CLONE, unix.CLONE_PARENT) && ok(unix.SYS_CLONE, unix.CLONE_PARENT|unix.CLONE_PARENT_SETTID) && ok(unix.SYS_EXIT_GROUP, 127) &&
		ok(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE) && ok(unix.SYS_SETSID) && ok(unix.SYS_READ, fdConsole) &&
		(!l.control || ok(unix.SYS_IOCTL, 0, unix.TIOCSCTTY)) && ok(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC) && (!l.resets || ok(unix.SYS_SCHED_SETATTR))
}

// close closes the files that the second child must not have: label files and pipes of the keeper,
// the pid namespace, the user namespaces.
func (l *late) close(c *compiler) {
	first := fdFirst
	if c.listener != nil {
		first++
	}
	c.plan.Add("close the descriptors of others", unix.SYS_CLOSE_RANGE, plan.V(first+c.in.Preserve), plan.V(^uint32(0)), plan.V(0))
}

// enter makes the second child, which is in the pid namespace. All that it does from
// here on needs no privileges.
func (l *late) enter(c *compiler) {
	if !l.early { // dropping rights may have made it dumpable again
		c.plan.Add("not dumpable", unix.SYS_PRCTL, plan.V(unix.PR_SET_DUMPABLE), plan.V(0))
	}
	c.plan.AddFork("enter the pid namespace", unix.CLONE_PARENT, 0, 0)
	if len(l.notify) == 0 {
		c.plan.Add("wait for the keeper", unix.SYS_READ, c.in.ownFD(fdConsole), plan.P(c.plan.Words(0)), plan.V(1)).Result(1)
	}
	for _, at := range l.notify {
		c.plan.Add("our pid", unix.SYS_READ, c.in.ownFD(fdConsole), plan.P(at), plan.V(len(pidRoom))).Result(uint64(len(pidRoom)))
	}
	c.plan.Add("setsid", unix.SYS_SETSID)
	if l.control {
		c.controlTerminal()
	}
	if p := l.limit; p != nil {
		c.plan.Add("limit "+p.Type, unix.SYS_PRLIMIT64, plan.V(0), plan.V(unix.RLIMIT_NPROC), plan.P(c.plan.Words(p.Soft, p.Hard)), plan.V(0))
	}
	if l.resets {
		_ = c.addScheduler(l.spec.Process.Scheduler, 0) // it has been checked before
	}
}

// countOneMore sets the limit on the number of a user's processes for the first child,
// plus one: the second child makes one more for a moment, and then sets the right limit.
func (l *late) countOneMore(c *compiler, p specs.POSIXRlimit) {
	l.limit = &p
	c.plan.Add("limit "+p.Type, unix.SYS_PRLIMIT64, plan.V(0), plan.V(unix.RLIMIT_NPROC), plan.P(c.plan.Words(oneMore(p.Soft), oneMore(p.Hard))), plan.V(0)).Allow(uint16(unix.EPERM))
}

func oneMore(limit uint64) uint64 {
	if limit == math.MaxUint64 {
		return limit
	}
	return limit + 1
}

// procPidNS reports whether the kernel can mount a proc for another pid namespace than
// the mounter's.
func procPidNS() bool {
	fd, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.FsconfigSetString(fd, "pidns", "/proc/self/ns/pid") == nil
}
