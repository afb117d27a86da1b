package compile

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/weaken"
)

// process adds the operations that make the child the program's process: limits,
// identity, privileges, and finally execve.
func (c *compiler) process(p *specs.Process) error {
	if c.late != nil {
		c.late.keepDescriptors(c)
	}
	if err := c.scheduling(p); err != nil {
		return err
	}
	if !c.in.KeepKeyring {
		allowed := []uint16{uint16(unix.ENOSYS)}
		if c.in.Host.LockedKeyring && !weaken.Off(weaken.KeyringQuota) {
			allowed = append(allowed, uint16(unix.EDQUOT))
		}
		// Without a name: the kernel would join a keyring of that name that another program of the
		// same user has made accessible.
		name := plan.V(0)
		if weaken.Off(weaken.SessionKeyring) {
			name = plan.P(c.plan.String("_ses." + c.in.ID))
		}
		c.plan.Add("session keyring", unix.SYS_KEYCTL, plan.V(unix.KEYCTL_JOIN_SESSION_KEYRING), name).Allow(allowed...)
	}
	for _, l := range c.labels {
		c.plan.Add("label "+l.text, unix.SYS_WRITE, plan.S(l.slot), plan.P(c.plan.String(l.text)), plan.V(len(l.text)))
	}
	// The child can enter directories that the user cannot. It must not follow a magic
	// link in a /proc with its privileges, because that could lead out of the container.
	how := c.plan.Words(uint64(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), 0, unix.RESOLVE_NO_MAGICLINKS)
	cwd, _ := c.open("open "+p.Cwd, unix.SYS_OPENAT2, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(p.Cwd)), plan.P(how), plan.V(unix.SizeofOpenHow))
	c.plan.Add("chdir "+p.Cwd, unix.SYS_FCHDIR, plan.V(cwd))
	c.closeLast(cwd)
	rules, err := c.landlockRules()
	if err != nil {
		return err
	}
	if err := c.restrictToLevels(); err != nil {
		return err
	}
	// Set the limits after the last open, which they could forbid.
	if err := c.rlimits(p); err != nil {
		return err
	}
	if c.late != nil {
		c.late.close(c)
		if c.late.early {
			c.late.enter(c)
		}
	}
	if p.NoNewPrivileges {
		c.plan.Add("no new privileges", unix.SYS_PRCTL, plan.V(unix.PR_SET_NO_NEW_PRIVS), plan.V(1))
	} else if c.filter != nil { // without no_new_privs, installing it needs privileges that are dropped next
		c.installFilter(c.filter)
	}
	if err := c.identity(p); err != nil {
		return err
	}
	umask := uint32(0o022)
	if p.User.Umask != nil {
		umask = *p.User.Umask
	}
	c.plan.Add("umask", unix.SYS_UMASK, plan.V(umask))
	if c.late != nil && !c.late.early {
		c.late.enter(c)
	}
	// A listener gets its descriptor now and does not wait for the start.
	late := p.NoNewPrivileges && c.filter != nil
	c.restrict(rules)
	if late && (c.filter.Notify || c.in.Confine != nil) {
		c.installFilter(c.filter)
		late = false
	}
	if c.in.Park {
		c.plan.Add("say that we are parked", unix.SYS_WRITE, c.in.ownFD(fdError), plan.P(c.plan.Words(plan.StepParked)), plan.V(8)).Result(8)
		c.plan.Add("wait for the start", unix.SYS_READ, c.in.ownFD(fdPark), plan.P(c.plan.Words(0)), plan.V(1)).Result(1)
		// Close it before the failure pipe. The end of that means that the program runs: from then
		// on no one must find the process parked.
		c.plan.Add("close the parking pipe", unix.SYS_CLOSE, c.in.ownFD(fdPark))
	}
	if late {
		c.installFilter(c.filter)
	}
	if c.in.Confine != nil {
		c.execProgram(p)
		return nil
	}
	c.execve(p)
	return nil
}

var resources = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

func (c *compiler) rlimits(p *specs.Process) error {
	for i, l := range p.Rlimits {
		r, ok := resources[l.Type]
		if !ok {
			return fmt.Errorf("process.rlimits[%d]: %q: unknown: %w", i, l.Type, errdefs.ErrInvalidArgument)
		}
		if c.late != nil && r == unix.RLIMIT_NPROC {
			c.late.countOneMore(c, l)
			continue
		}
		c.plan.Add("limit "+l.Type, unix.SYS_PRLIMIT64, plan.V(0), plan.V(r), plan.P(c.plan.Words(l.Soft, l.Hard)), plan.V(0))
	}
	return nil
}

var policies = map[specs.LinuxSchedulerPolicy]uint32{
	specs.SchedOther: unix.SCHED_NORMAL, specs.SchedFIFO: unix.SCHED_FIFO, specs.SchedRR: unix.SCHED_RR, specs.SchedBatch: unix.SCHED_BATCH,
	specs.SchedIdle: unix.SCHED_IDLE, specs.SchedDeadline: unix.SCHED_DEADLINE,
}

var schedFlags = map[specs.LinuxSchedulerFlag]uint64{
	specs.SchedFlagResetOnFork: unix.SCHED_FLAG_RESET_ON_FORK, specs.SchedFlagReclaim: unix.SCHED_FLAG_RECLAIM, specs.SchedFlagDLOverrun: unix.SCHED_FLAG_DL_OVERRUN,
	specs.SchedFlagKeepPolicy: unix.SCHED_FLAG_KEEP_POLICY, specs.SchedFlagKeepParams: unix.SCHED_FLAG_KEEP_PARAMS,
	specs.SchedFlagUtilClampMin: unix.SCHED_FLAG_UTIL_CLAMP_MIN, specs.SchedFlagUtilClampMax: unix.SCHED_FLAG_UTIL_CLAMP_MAX,
}

func (c *compiler) scheduling(p *specs.Process) error {
	if s := p.Scheduler; s != nil {
		without := uint64(0)
		if c.late != nil && slices.Contains(s.Flags, specs.SchedFlagResetOnFork) {
			c.late.resets, without = true, unix.SCHED_FLAG_RESET_ON_FORK
		}
		if err := c.addScheduler(s, without); err != nil {
			return err
		}
	}
	if io := p.IOPriority; io != nil {
		class, ok := map[specs.IOPriorityClass]int{specs.IOPRIO_CLASS_RT: 1, specs.IOPRIO_CLASS_BE: 2, specs.IOPRIO_CLASS_IDLE: 3}[io.Class]
		if !ok || io.Priority < 0 || io.Priority > 7 {
			return fmt.Errorf("process.ioPriority: class %q, priority %d: unknown: %w", io.Class, io.Priority, errdefs.ErrInvalidArgument)
		}
		const whoProcess = 1
		c.plan.Add("io priority", unix.SYS_IOPRIO_SET, plan.V(whoProcess), plan.V(0), plan.V(class<<13|io.Priority))
	}
	if per := c.in.Spec.Linux.Personality; per != nil {
		domain := map[specs.LinuxPersonalityDomain]int{specs.PerLinux: 0, specs.PerLinux32: 8}
		v, ok := domain[per.Domain]
		if !ok || len(per.Flags) > 0 {
			return fmt.Errorf("linux.personality: %q with flags %v: %w", per.Domain, per.Flags, errdefs.ErrInvalidArgument)
		}
		c.plan.Add("personality", unix.SYS_PERSONALITY, plan.V(v))
	}
	return c.memoryPolicy(c.in.Spec.Linux.MemoryPolicy)
}

// addScheduler sets a scheduling policy, leaving out the flags in without.
func (c *compiler) addScheduler(s *specs.Scheduler, without uint64) error {
	policy, ok := policies[s.Policy]
	if !ok {
		return fmt.Errorf("process.scheduler.policy: %q: unknown: %w", s.Policy, errdefs.ErrInvalidArgument)
	}
	var flags uint64
	for _, f := range s.Flags {
		bit, ok := schedFlags[f]
		if !ok {
			return fmt.Errorf("process.scheduler.flags: %q: unknown: %w", f, errdefs.ErrInvalidArgument)
		}
		flags |= bit
	}
	// struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
	attr := c.plan.Words(unix.SizeofSchedAttr|uint64(policy)<<32, flags&^without, uint64(uint32(s.Nice))|uint64(uint32(s.Priority))<<32, s.Runtime, s.Deadline, s.Period, 0)
	c.plan.Add("scheduler", unix.SYS_SCHED_SETATTR, plan.V(0), plan.P(attr), plan.V(0))
	return nil
}

// maxGroups is the kernel's NGROUPS_MAX.
const maxGroups = 65536

// identity drops the bounding set, changes to the user, and sets the capabilities.
func (c *compiler) identity(p *specs.Process) error {
	caps, err := capsOf(p.Capabilities, c.in.Host)
	if err != nil {
		return err
	}
	for i := range c.in.Host.LastCap + 1 {
		if caps.bounding&(1<<i) == 0 && c.in.Host.Bounding&(1<<i) != 0 {
			c.plan.Add("drop capability "+fmt.Sprint(i), unix.SYS_PRCTL, plan.V(unix.PR_CAPBSET_DROP), plan.V(i))
		}
	}
	c.plan.Add("keep capabilities", unix.SYS_PRCTL, plan.V(unix.PR_SET_KEEPCAPS), plan.V(1))
	if len(p.User.AdditionalGids) > maxGroups {
		return fmt.Errorf("process.user.additionalGids: %d groups, the kernel takes %d: %w", len(p.User.AdditionalGids), maxGroups, errdefs.ErrInvalidArgument)
	}
	groups := make([]byte, 0, 4*len(p.User.AdditionalGids))
	for _, g := range p.User.AdditionalGids {
		groups = append(groups, byte(g), byte(g>>8), byte(g>>16), byte(g>>24))
	}
	c.plan.Add("setgroups", unix.SYS_SETGROUPS, plan.V(len(p.User.AdditionalGids)), plan.P(c.plan.Bytes(append(groups, 0, 0, 0, 0))))
	gid, uid := plan.V(p.User.GID), plan.V(p.User.UID)
	c.plan.Add("setresgid", unix.SYS_SETRESGID, gid, gid, gid)
	c.plan.Add("setresuid", unix.SYS_SETRESUID, uid, uid, uid)
	c.plan.Add("keep no more", unix.SYS_PRCTL, plan.V(unix.PR_SET_KEEPCAPS), plan.V(0))
	header := c.plan.Words(unix.LINUX_CAPABILITY_VERSION_3)
	lo, hi := func(v uint64) uint64 { return v & 0xffffffff }, func(v uint64) uint64 { return v >> 32 }
	data := c.plan.Words(lo(caps.effective)|lo(caps.permitted)<<32, lo(caps.inheritable)|hi(caps.effective)<<32, hi(caps.permitted)|hi(caps.inheritable)<<32)
	c.plan.Add("capset", unix.SYS_CAPSET, plan.P(header), plan.P(data))
	for i := range c.in.Host.LastCap + 1 {
		if caps.ambient&(1<<i) != 0 {
			c.plan.Add("ambient capability "+fmt.Sprint(i), unix.SYS_PRCTL, plan.V(unix.PR_CAP_AMBIENT), plan.V(unix.PR_CAP_AMBIENT_RAISE), plan.V(i), plan.V(0), plan.V(0))
		}
	}
	return nil
}

// execve tries the program in every directory of PATH, as execvp does.
func (c *compiler) execve(p *specs.Process) {
	argv, envp := plan.P(c.plan.Strings(p.Args)), plan.P(c.plan.Strings(p.Env))
	files := Candidates(p)
	if c.file != "" {
		files = []string{c.file}
	}
	for i, f := range files {
		o := c.plan.Add("exec "+f, unix.SYS_EXECVE, plan.P(c.plan.String(f)), argv, envp)
		if i < len(files)-1 {
			o.Allow(uint16(unix.ENOENT), uint16(unix.EACCES))
		}
	}
}

// Candidates returns the possible paths of a process's program, in the order of the attempts.
func Candidates(p *specs.Process) []string {
	name := p.Args[0]
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range p.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	var files []string
	for _, dir := range strings.Split(search, ":") {
		if dir == "" {
			dir = "."
		}
		files = append(files, path.Join(dir, name))
	}
	return files
}
