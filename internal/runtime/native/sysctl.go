package native

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// sysctls sets kernel parameters of the container's namespaces. They are those
// of the writer, whichever /proc they are written through, so it is the host's:
// a container's might be anything.
func (c birth) sysctls(own bool) error {
	for _, key := range sortedKeys(c.in.Spec.Linux.Sysctl) {
		kind, err := c.in.namespaced(key)
		if err != nil {
			return err
		}
		if c.user != nil && own != c.has(kind) || c.user == nil && !own {
			continue
		}
		value := c.in.Spec.Linux.Sysctl[key]
		how := c.Words(uint64(unix.O_WRONLY|unix.O_CLOEXEC), 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV|unix.RESOLVE_BENEATH)
		// A dot separates; one inside a name (an interface's) is written as
		// a slash, as sysctl(8) has it.
		file := strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, key)
		dir, _ := c.open("open /proc/sys", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String("/proc/sys")), plan.V(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
		fd, _ := c.open("open sysctl "+key, unix.SYS_OPENAT2, plan.V(dir), plan.P(c.String(file)), plan.P(how), plan.V(unix.SizeofOpenHow))
		c.Add("set sysctl "+key, unix.SYS_WRITE, plan.V(fd), plan.P(c.String(value)), plan.V(len(value)))
		c.shut(fd)
		c.shut(dir)
	}
	return nil
}

// namespaced refuses what would change the host: only parameters of a namespace
// that the container does not share with it may be set.
func (in *Input) namespaced(key string) (kind specs.LinuxNamespaceType, err error) {
	switch first, _, _ := strings.Cut(key, "."); {
	case first == "net":
		kind = specs.NetworkNamespace
	case strings.HasPrefix(key, "fs.mqueue."), slices.Contains([]string{
		"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
	}, key):
		kind = specs.IPCNamespace
	case key == "kernel.domainname", key == "kernel.hostname":
		kind = specs.UTSNamespace
	}
	switch {
	case kind == "" || strings.Contains(key, ".."):
		return kind, fmt.Errorf("linux.sysctl: %q is not a parameter of a namespace: %w", key, errdefs.ErrInvalidArgument)
	case !in.apart(kind):
		return kind, fmt.Errorf("linux.sysctl: %q without a %s namespace of its own: %w", key, kind, errdefs.ErrInvalidArgument)
	}
	return kind, nil
}
