package doctor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/control"
)

// OK returns a finding of something that works.
func OK(name, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingOK, Detail: fmt.Sprintf(format, args...)}
}

// Warn returns a finding of something that works in part.
func Warn(name, hint, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingWarn, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

// Fail returns a finding of something that does not work.
func Fail(name, hint, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingFail, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

// Kernel compares the kernel's release with the tested ones.
func Kernel() control.Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Fail("kernel", "", "uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, _ := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	if x < 5 || x == 5 && y < 15 {
		return Warn("kernel", "use Linux 5.15 or later", "%s is older than the kernels that Longshore is tested on", release)
	}
	return OK("kernel", "%s", release)
}

// Capabilities checks the capabilities of this process.
func Capabilities() control.Finding {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return Fail("capabilities", "", "capget: %v", err)
	}
	if d[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return Fail("capabilities", "run the agent as root", "CAP_SYS_ADMIN is missing")
	}
	if d[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return Warn("capabilities", "", "CAP_SYS_RESOURCE is missing: lower oom_score_adj and higher hard limits are clamped, and the container's warnings say so")
	}
	return OK("capabilities", "all that are needed")
}

// State checks that the directory of live records is on a tmpfs.
func State(dir string) control.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Fail("state", "", "%s: %v", dir, err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		return Warn("state", "mount a tmpfs there", "%s is not on a tmpfs: live records cause disk writes, and are deleted after a boot all the same", dir)
	}
	return OK("state", "%s is on a tmpfs", dir)
}

// KernelLog checks that the kernel's log can be read.
func KernelLog() control.Finding {
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		return Warn("kernel log", "", "/dev/kmsg: %v: out-of-memory kills are known only from the cgroups' counters, without their victim", err)
	}
	_ = f.Close()
	return OK("kernel log", "readable: the victim of an out-of-memory kill is known")
}

// Devices checks the host's devices that its own programs and containers rely on.
func Devices() control.Finding {
	for _, d := range []struct {
		path         string
		major, minor uint32
	}{{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}} {
		var st unix.Stat_t
		err := unix.Stat(d.path, &st)
		switch {
		case err != nil:
		case st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(d.major, d.minor):
			err = errors.New("it is another kind of file")
		case st.Mode&0o666 != 0o666:
			err = fmt.Errorf("its mode is %04o", st.Mode&0o7777)
		}
		if err != nil {
			hint := fmt.Sprintf("create it again: rm -f %s; mknod -m 666 %s c %d %d", d.path, d.path, d.major, d.minor)
			return Fail("devices", hint, "%s should be the device c %d:%d with mode 0666: %v", d.path, d.major, d.minor, err)
		}
	}
	return OK("devices", "/dev/null and similar devices are correct")
}
