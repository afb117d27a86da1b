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
