package native

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/sysctl"
)

// sysctls sets kernel parameters of the container's namespaces. They are those
// of the writer, whichever /proc they are written through, so it is the host's:
// a container's might be anything. Each is opened below the directory of its
// kind of namespace: no name leads to a parameter of the machine.
func (c birth) sysctls(own bool) error {
	settings, err := sysctl.ParseAll(c.in.Spec.Linux.Sysctl)
	if err != nil {
		return fmt.Errorf("linux.sysctl: %w", err)
	}
	for _, s := range settings {
		if !c.in.apart(s.Kind) {
			return fmt.Errorf("linux.sysctl: %q without a %s namespace of its own: %w", s.Name, s.Kind, errdefs.ErrInvalidArgument)
		}
		if c.user != nil && own != c.has(s.Kind) || c.user == nil && !own {
			continue
		}
		h := sysctl.How()
		how := c.Words(h.Flags, h.Mode, h.Resolve)
		where := sysctl.Root + "/" + s.Dir
		dir, _ := c.open("open "+where, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String(where)), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
		fd, _ := c.open("open sysctl "+s.Name, unix.SYS_OPENAT2, plan.V(dir), plan.P(c.String(s.File)), plan.P(how), plan.V(unix.SizeofOpenHow))
		c.Add("set sysctl "+s.Name, unix.SYS_WRITE, plan.V(fd), plan.P(c.String(s.Value)), plan.V(len(s.Value)))
		c.shut(fd)
		c.shut(dir)
	}
	return nil
}
