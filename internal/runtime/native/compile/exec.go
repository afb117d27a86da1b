package compile

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// ExecInput describes a further process in a running container.
type ExecInput struct {
	ID      string
	Process *specs.Process
	// Spec is the container's: the process joins its namespaces and gets its seccomp
	// profile.
	Spec   *specs.Spec
	Cgroup Cgroup
	Host   Host
	// Preserve and KeepKeyring are those of Input.
	Preserve    int
	KeepKeyring bool
	// Pid and Bundle are the container's; they are reported to a seccomp listener.
	Pid    int
	Bundle string
}

// Exec compiles a process into a plan that the keeper runs with the container's
// main process as target. The plan parks before the program, so that the keeper has
// recorded the process by then.
func Exec(in ExecInput) (Output, error) { return execFile(in, true, "") }

// execFile is Exec with the options not to park and to execute file instead of
// the process's first argument.
func execFile(in ExecInput, park bool, file string) (Output, error) {
	p := in.Process
	switch {
	case p == nil || len(p.Args) == 0:
		return Output{}, fmt.Errorf("process.args: empty: %w", errdefs.ErrInvalidArgument)
	case !path.IsAbs(p.Cwd):
		return Output{}, fmt.Errorf("process.cwd: %q is not absolute: %w", p.Cwd, errdefs.ErrInvalidArgument)
	}
	spec := *in.Spec
	spec.Process = p
	c := &compiler{file: file, draft: draft{next: fdFirst + in.Preserve, in: Input{
		ID: in.ID, Spec: &spec, Cgroup: in.Cgroup, Host: in.Host, Park: park, Preserve: in.Preserve, KeepKeyring: in.KeepKeyring,
	}}}
	bound := p.ExecCPUAffinity
	if bound == nil {
		bound = &specs.CPUAffinity{}
	}
	unified, later := in.Cgroup.Unified, ""
	if bound.Initial != "" { // it must hold before the process is in its cgroup
		unified, later = "", unified
	}
	c.plan.Clone(0, unified)
	var err error
	if c.late, err = newLate(&spec); err != nil {
		return Output{}, err
	}
	target := c.placeStreams(true)
	if err := c.affinity("initial", bound.Initial); err != nil {
		return Output{}, err
	}
	c.oomScore()
	c.joinCgroups(in.Cgroup.Dirs)
	if later != "" {
		c.join(later, "cgroup.procs")
	}
	if err := c.affinity("final", bound.Final); err != nil {
		return Output{}, err
	}
	c.openLabels()
	state := specs.State{Version: spec.Version, ID: in.ID, Status: specs.StateRunning, Pid: in.Pid, Bundle: in.Bundle, Annotations: spec.Annotations}
	if err := c.prepareFilter(state); err != nil {
		return Output{}, err
	}
	c.connectListener(spec.Linux.Seccomp)
	if c.inUser() {
		if err := c.raiseLimits(); err != nil {
			return Output{}, err
		}
	}
	if c.late == nil {
		c.plan.Add("setsid", unix.SYS_SETSID)
	}
	if c.in.borrows() && in.Pid <= 0 {
		return Output{}, notDone("linux.namespaces (no mount namespace, or one that is joined): an exec")
	}
	c.joinTarget(target, in.Pid)
	if p.Terminal {
		how := c.plan.Words(uint64(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC), 0, unix.RESOLVE_NO_SYMLINKS)
		master, _ := c.open("open a terminal", unix.SYS_OPENAT2, plan.V(unix.AT_FDCWD), plan.P(c.plan.String("/dev/pts/ptmx")), plan.P(how), plan.V(unix.SizeofOpenHow))
		slave := c.pty(master)
		c.stdio(slave)
		c.closeLast(slave)
		c.closeLast(master)
	}
	if err := c.process(p); err != nil {
		return Output{}, err
	}
	return c.finish()
}

// inUser reports whether an exec's target is in a user namespace other than the host's.
func (d *draft) inUser() bool {
	return slices.ContainsFunc(d.in.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }) && d.in.ownNamespace(specs.UserNamespace)
}

// joinTarget enters the namespaces of an exec's target with a single setns, which also
// changes root and working directory to those of the mount namespace. Only later
// children of this process are in the pid namespace, unless the process that cloned it
// has put it there. In a user namespace this process is its root then. If the container
// uses a mount namespace that is not its own, its root is that of its main process, pid:
// it is opened first, and the join proves that the process was still alive then.
func (c *compiler) joinTarget(target, pid int) {
	root := -1
	if c.in.borrows() && pid > 0 {
		name := "/proc/" + strconv.Itoa(pid) + "/root"
		root, _ = c.open("open "+name, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(name)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	}
	var flags uint64
	inUser := c.inUser()
	for _, ns := range c.in.Spec.Linux.Namespaces {
		if (ns.Type != specs.PIDNamespace || c.late != nil) && (ns.Type != specs.UserNamespace || inUser) {
			flags |= cloneFlags[ns.Type]
		}
	}
	if flags == 0 { // setns needs at least one
		flags = unix.CLONE_NEWUTS
	}
	c.plan.Add("join the container's namespaces", unix.SYS_SETNS, plan.V(target), plan.V(flags))
	if root >= 0 {
		c.plan.Add("fchdir to the container's root", unix.SYS_FCHDIR, plan.V(root))
		c.plan.Add("chroot", unix.SYS_CHROOT, plan.P(c.plan.String(".")))
		c.closeLast(root)
	}
	if inUser {
		c.becomeRoot()
		c.in.Host.Bounding = 1<<(c.in.Host.LastCap+1) - 1
	}
}
