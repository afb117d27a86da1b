package native_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
)

// TestAUserNamespaceGivesNothingOfTheHost: its root has every capability there, and none over our
// devices, host file systems, kernel parameters, cgroups, and the limits of a host's mount.
func TestAUserNamespaceGivesNothingOfTheHost(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		for _, dir := range []string{"/run/readonly", "/run/private"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("host"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod("/run/readonly/f", 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod("/run/readonly", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", "/run/readonly", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			t.Fatal(err)
		}
		s := nativetest.InUserns(privileged(`
bad() { "$@" 2>/dev/null && echo "it could: $*"; }
grep -q 'CapEff:.*1ff' /proc/self/status || echo "it lacks capabilities"
bad mknod /tmp/sda b 8 0
for d in /dev/vda /dev/sda /dev/nvme0n1; do bad mount -t ext4 $d /tmp; done
for f in kernel/core_pattern kernel/modprobe vm/drop_caches kernel/sysrq fs/binfmt_misc/register; do
  test -e /proc/sys/$f && { echo 1 > /proc/sys/$f; } 2>/dev/null && echo "it wrote $f"; done
for f in $(find /sys/fs/cgroup -name release_agent -o -name notify_on_release 2>/dev/null); do { echo /x > $f; } 2>/dev/null && case $f in *agent) echo "it wrote $f";; esac; done
mount -t cgroup -o memory cgroup /tmp 2>/dev/null && { { echo /x > /tmp/release_agent; } 2>/dev/null && echo "it wrote release_agent anew"; umount /tmp; }
bad mount -o remount,bind,rw /ro
bad mount -o remount,bind,dev /ro
{ echo x > /ro/f; } 2>/dev/null && echo "it wrote a read-only mount"
mount --bind /ro /tmp 2>/dev/null && { bad mount -o remount,bind,rw /tmp; { echo x > /tmp/f; } 2>/dev/null && echo "it wrote a copy of it"; umount /tmp; }
bad mount -o remount,bind,rw /asked
bad cat /private/f
bad chown 0:0 /private/f
bad dmesg -c
bad hwclock -w
bad swapon /tmp/x
echo x > /dev/null || echo "no null"
echo done`))
		s.Linux.ReadonlyPaths, s.Linux.MaskedPaths = nil, nil
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/ro", Type: "bind", Source: "/run/readonly", Options: []string{"rbind"}},
			specs.Mount{Destination: "/asked", Type: "bind", Source: "/run/private", Options: []string{"rbind", "ro"}},
			specs.Mount{Destination: "/private", Type: "bind", Source: "/run/private", Options: []string{"rbind"}},
			specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev"}})
		if out := n.output(t, s); out != "done\n" {
			t.Errorf("%s", out)
		}
		for _, f := range []string{"/run/readonly/f", "/run/private/f"} {
			if b, err := os.ReadFile(f); err != nil || string(b) != "host" {
				t.Errorf("%s: %q, %v", f, b, err)
			}
		}
	})
}
