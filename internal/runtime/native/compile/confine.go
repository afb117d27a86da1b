package compile

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
	"github.com/longshore/longshore/internal/weaken"
)

// Confine has the compiler's facts about a program that holds only its descriptors.
type Confine struct {
	// Landlock is the version of Landlock's interface to use; 0 is none.
	Landlock int
	// Access has the rights of each descriptor from 3 on, and Dirs says whether it is a directory.
	Access []core.Access
	Dirs   []bool
	// Filter is the compiled filter of the spec; nil has it compiled.
	Filter *seccomp.Filter
}

// placeGiven moves the descriptors of the program from their slots to the numbers from 3 on. Only
// the file of a confined program is closed by its execution.
func (c *compiler) placeGiven() {
	for i, slot := range c.in.Given {
		flags := 0
		if c.in.Confine != nil && i == c.in.Preserve-1 {
			flags = unix.O_CLOEXEC
		}
		c.plan.Add("descriptor of the program", unix.SYS_DUP3, plan.S(slot), plan.V(fdError+i), plan.V(flags))
	}
}

// fromLaunch returns how many descriptors come with the launch.
func (in *Input) fromLaunch() (n int) {
	for _, slot := range in.Given {
		if slot >= plan.SlotGiven {
			n++
		}
	}
	return n
}

// The rights of Landlock on files that each version of its interface added.
const (
	fsFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	fsMake = unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	fsNode = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
)

// landlockVersion returns the version of Landlock's interface that the kernel offers; 0 is none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// handled returns the rights that a version of Landlock can restrict: on files, on networks, and
// scopes.
func handled(version int) (fs, net, scoped uint64) {
	if version >= 1 {
		fs = fsFile | unix.LANDLOCK_ACCESS_FS_READ_DIR | fsMake | fsNode
	}
	if version >= 2 {
		fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 4 {
		net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 5 {
		fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= 6 {
		scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return fs, net, scoped
}

// Left names the rights that a version of Landlock does not cover, and the mechanism that covers
// them instead.
func Left(version int) (left []string) {
	for _, l := range []struct {
		since int
		text  string
	}{
		{1, "paths (detached mounts and an empty root hold them)"},
		{2, "renames between directories are forbidden altogether"},
		{3, "truncation of files that can be written (read-only mounts forbid it for others)"},
		{4, "TCP sockets (an empty network and the filter of system calls forbid them)"},
		{5, "device files (mounts without devices hold none)"},
		{6, "abstract unix sockets and signals (namespaces of its own hold them)"},
	} {
		if version < l.since {
			left = append(left, l.text)
		}
	}
	return left
}

// allowed returns Landlock's rights for the access of a descriptor.
func allowed(a core.Access, dir bool) (fs uint64) {
	if a&core.AccessRead != 0 {
		fs |= unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	}
	if a&core.AccessWrite != 0 {
		fs |= unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER | fsMake
	}
	if a&core.AccessExecute != 0 {
		fs |= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	if !dir {
		fs &= fsFile | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	return fs
}

// sizeofPathBeneath is the size of struct landlock_path_beneath_attr, which is packed.
const sizeofPathBeneath = 12

// landlockRules makes the ruleset of a confined program, and returns its descriptor; -1 is none.
func (c *compiler) landlockRules() (int, error) {
	l := c.in.Confine
	if l == nil || l.Landlock == 0 || weaken.Off(weaken.GrantLandlock) {
		return -1, nil
	}
	if len(l.Access) != c.in.Preserve || len(l.Dirs) != c.in.Preserve {
		return -1, fmt.Errorf("descriptors: %d of %d have rights: %w", len(l.Access), c.in.Preserve, errdefs.ErrInvalidArgument)
	}
	if c.late != nil {
		return -1, notDone("a pid namespace that is joined by a program that holds only its descriptors")
	}
	fs, net, scoped := handled(l.Landlock)
	rules := ruleset(&c.draft, l.Landlock, fs, net, scoped)
	for i, a := range l.Access {
		rights := allowed(a, l.Dirs[i]) & fs
		if rights == 0 {
			continue
		}
		addRule(&c.draft, rules, fdError+i, rights)
	}
	return rules, nil
}

// ruleset makes a ruleset and returns its descriptor.
func ruleset(d *draft, version int, fs, net, scoped uint64) int {
	size := 8 // struct landlock_ruleset_attr grew with the versions
	switch {
	case version >= 6:
		size = 24
	case version >= 4:
		size = 16
	}
	rules, _ := d.open("landlock", unix.SYS_LANDLOCK_CREATE_RULESET, plan.P(d.plan.Words(fs, net, scoped)), plan.V(size), plan.V(0))
	return rules
}

// addRule allows the rights beneath the file that is open as fd.
func addRule(d *draft, rules, fd int, rights uint64) *plan.Op {
	attr := make([]byte, 0, sizeofPathBeneath)
	for shift := 0; shift < 64; shift += 8 {
		attr = append(attr, byte(rights>>shift))
	}
	attr = append(attr, byte(fd), byte(fd>>8), 0, 0)
	return d.plan.Add("landlock rule", unix.SYS_LANDLOCK_ADD_RULE, plan.V(rules), plan.V(unix.LANDLOCK_RULE_PATH_BENEATH), plan.P(d.plan.Bytes(attr)), plan.V(0))
}

// restrict applies a ruleset to the process and closes it.
func (c *compiler) restrict(rules int) {
	if rules < 0 {
		return
	}
	c.plan.Add("landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, plan.V(rules), plan.V(0))
	c.closeLast(rules)
}

// execProgram executes the program by its descriptor.
func (c *compiler) execProgram(p *specs.Process) {
	c.plan.Add("exec "+p.Args[0], unix.SYS_EXECVEAT, plan.V(c.programFD()), plan.P(c.plan.String("")), plan.P(c.plan.Strings(p.Args)), plan.P(c.plan.Strings(p.Env)), plan.V(unix.AT_EMPTY_PATH))
}

func (c *compiler) programFD() int { return fdError + c.in.Preserve - 1 }
