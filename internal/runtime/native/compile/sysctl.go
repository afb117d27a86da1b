package compile

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/sysctl"
)

// sysctls sets kernel parameters of the container's namespaces. The kernel sets those of
// the writing process's namespaces, whichever /proc is used, so the host's is: the
// container's cannot be trusted. Each file is opened below the directory of its kind of
// namespace, so that no name reaches a parameter of the whole machine.
func (c *compiler) sysctls(own bool) error {
	settings, err := sysctl.ParseAll(c.in.Spec.Linux.Sysctl)
	if err != nil {
		return fmt.Errorf("linux.sysctl: %w", err)
	}
	for _, s := range settings {
		if !c.in.ownNamespace(s.Kind) {
			return fmt.Errorf("linux.sysctl: %q without a %s namespace of its own: %w", s.Name, s.Kind, errdefs.ErrInvalidArgument)
		}
		if c.user != nil && own != c.has(s.Kind) || c.user == nil && !own {
			continue
		}
		h := sysctl.How()
		how := c.plan.Words(h.Flags, h.Mode, h.Resolve)
		where := sysctl.Root + "/" + s.Dir
		dir, _ := c.open("open "+where, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String(where)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
		fd, _ := c.open("open sysctl "+s.Name, unix.SYS_OPENAT2, plan.V(dir), plan.P(c.plan.String(s.File)), plan.P(how), plan.V(unix.SizeofOpenHow))
		c.plan.Add("set sysctl "+s.Name, unix.SYS_WRITE, plan.V(fd), plan.P(c.plan.String(s.Value)), plan.V(len(s.Value)))
		c.closeLast(fd)
		c.closeLast(dir)
	}
	return nil
}
