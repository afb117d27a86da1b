package ocicli

import (
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ownMounts reports whether a container's mounts go with it: it has a mount namespace of its own,
// or joins one, and then that one's creator is responsible for them.
func ownMounts(s *specs.Spec) bool {
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.MountNamespace {
			return true
		}
	}
	return false
}

// mountsAt counts the mounts at a path.
func mountsAt(path string) int {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path)
	n := 0
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == escaped {
			n++
		}
	}
	return n
}

// unmount removes the mounts of a container without a mount namespace from the caller's: its root
// filesystem bound over itself, and everything below.
func (c *container) unmount() error {
	if c.Mounts < 0 {
		return nil
	}
	for mountsAt(c.Rootfs) > c.Mounts {
		if err := unix.Unmount(c.Rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", c.Rootfs, err)
		}
	}
	return nil
}
