package compile

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// capSets are the five capability sets, with a bit per capability.
type capSets struct{ bounding, effective, permitted, inheritable, ambient uint64 }

// capNames are the names of all capabilities of Linux 6.x, by number.
var capNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE",
	"NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN",
	"SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE",
	"MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// capsOf reads the five sets, and removes the capabilities that this node does not have.
func capsOf(c *specs.LinuxCapabilities, h Host) (capSets, error) {
	var s capSets
	if c == nil {
		return s, nil
	}
	for _, f := range []struct {
		field string
		names []string
		to    *uint64
	}{
		{"bounding", c.Bounding, &s.bounding},
		{"effective", c.Effective, &s.effective},
		{"permitted", c.Permitted, &s.permitted},
		{"inheritable", c.Inheritable, &s.inheritable},
		{"ambient", c.Ambient, &s.ambient},
	} {
		for _, n := range f.names {
			i := slices.Index(capNames, strings.TrimPrefix(strings.ToUpper(n), "CAP_"))
			if i < 0 {
				return s, fmt.Errorf("process.capabilities.%s: %q: unknown: %w", f.field, n, errdefs.ErrInvalidArgument)
			}
			*f.to |= 1 << i
		}
		*f.to &= h.Bounding
	}
	// The kernel refuses an effective capability that is not permitted, an inheritable
	// one that is not in the bounding set, and an ambient one that is not both permitted
	// and inheritable.
	s.effective &= s.permitted
	s.inheritable &= s.bounding
	s.ambient &= s.permitted & s.inheritable
	return s, nil
}

// classOf returns the error class for a file system error.
func classOf(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return errdefs.ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		return errdefs.ErrPermissionDenied
	default:
		return errdefs.ErrInvalidArgument
	}
}
