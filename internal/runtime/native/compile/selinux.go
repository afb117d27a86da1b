package compile

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// mountData adds the label of linux.mountLabel to the data of a mount. proc, sysfs and
// cgroups take no label, mqueue takes it as an attribute (labelMqueue), and a label in
// the mount's own options wins.
func (in *Input) mountData(fstype string, data []string) string {
	label := in.Spec.Linux.MountLabel
	switch fstype {
	case "proc", "sysfs", "cgroup", "cgroup2", "mqueue":
		label = ""
	}
	for _, d := range data {
		if strings.HasPrefix(d, "context=") {
			label = ""
		}
	}
	if label != "" {
		data = append(data[:len(data):len(data)], `context="`+label+`"`)
	}
	return strings.Join(data, ",")
}

func (in *Input) checkMountLabel() error {
	if strings.ContainsAny(in.Spec.Linux.MountLabel, "\x00\"\\") {
		return fmt.Errorf("linux.mountLabel: %q: %w", in.Spec.Linux.MountLabel, errdefs.ErrInvalidArgument)
	}
	return nil
}

// labelMqueue sets the label of an mqueue mount's root.
func (r *rootfs) labelMqueue(p, fstype string) {
	label := r.in.Spec.Linux.MountLabel
	if fstype != "mqueue" || label == "" {
		return
	}
	fd, _ := r.target(p)
	r.plan.Add("label "+p, unix.SYS_SETXATTR, r.fdPath(fd), plan.P(r.plan.String("security.selinux")), plan.P(r.plan.String(label)), plan.V(len(label)+1), plan.V(0))
	r.closeLast(fd)
}

// labelPipe gives a standard stream the label of the container's files. The keeper makes FIFOs with a
// label of the host's files. The program may not write to those: at execve the kernel would replace the
// stream. Streams of other kinds stay as they are.
func labelPipe(c *compiler, fd int, name string) {
	label := filesOf(c.in.Spec.Process.SelinuxLabel)
	if label == "" {
		return
	}
	is := c.plan.Add(name+" is a pipe", unix.SYS_FCNTL, plan.V(fd), plan.V(unix.F_GETPIPE_SZ), plan.V(0)).Allow(uint16(unix.EBADF))
	is.Kind, is.Want = plan.Try, 1
	c.plan.Add("label "+name, unix.SYS_FSETXATTR, plan.V(fd), plan.P(c.plan.String("security.selinux")), plan.P(c.plan.String(label)), plan.V(len(label)+1), plan.V(0)).
		Allow(uint16(unix.EOPNOTSUPP))
}

// filesOf returns the label of files that only processes with this label, and those of the host, use.
// It is "" for a label without four parts.
func filesOf(process string) string {
	parts := strings.SplitN(process, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[0] + ":object_r:container_file_t:" + parts[3]
}
