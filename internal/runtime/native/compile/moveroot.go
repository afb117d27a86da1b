package compile

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// onInitramfs reports whether the root of this mount namespace is the kernel's initial
// file system, which pivot_root cannot replace.
func onInitramfs(mountinfo string) bool {
	for _, m := range mountsIn(mountinfo) {
		if m.at == "/" {
			return m.kind == "rootfs"
		}
	}
	return false
}

// views lists the mount points of proc and sysfs, which stay reachable below a root that
// was only moved.
func views(mountinfo string) []string {
	var all []string
	for _, m := range mountsIn(mountinfo) {
		if m.kind == "proc" || m.kind == "sysfs" {
			all = append(all, m.at)
		}
	}
	slices.Reverse(all) // the last mounted one must be unmounted first
	return all
}

type mountEntry struct{ at, kind string }

func mountsIn(mountinfo string) (all []mountEntry) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if ok && len(f) >= 5 && len(g) >= 1 {
			all = append(all, mountEntry{unescape(f[4]), g[0]})
		}
	}
	return all
}

// unescape decodes the kernel's \ooo escapes for blanks and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				_ = b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		_ = b.WriteByte(s[i])
	}
	return b.String()
}

// Refresh reads those facts of the host again that change while it runs.
func (h Host) Refresh() Host {
	if !h.Initramfs {
		return h
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		h.Views = views(string(b))
	}
	return h
}

// moveRoot changes the root where pivot_root cannot: it moves the new root over the old
// one, which stays below. Everything in the old one that a process could use is
// unmounted or hidden first.
func (r *rootfs) moveRoot() {
	dot, empty := plan.P(r.plan.String(".")), plan.P(r.plan.String(""))
	r.plan.Add("fchdir to the root", unix.SYS_FCHDIR, plan.V(r.fd))
	for _, v := range r.in.Host.Views {
		at := plan.P(r.plan.String(v))
		r.plan.Add("slave "+v, unix.SYS_MOUNT, empty, at, empty, plan.V(unix.MS_SLAVE|unix.MS_REC), empty).Allow(uint16(unix.EINVAL), uint16(unix.ENOENT))
		gone := r.plan.Len()
		r.plan.Add("unmount "+v, unix.SYS_UMOUNT2, at, plan.V(unix.MNT_DETACH)).Allow(uint16(unix.EINVAL), uint16(unix.EPERM)).Kind = plan.Try
		over := r.plan.Len()
		r.plan.Add("unmounted", 0).Kind = plan.Jump
		r.plan.Over(gone)
		r.plan.Add("hide "+v, unix.SYS_MOUNT, plan.P(r.plan.String("tmpfs")), at, plan.P(r.plan.String("tmpfs")), plan.V(unix.MS_RDONLY), plan.P(r.plan.String("size=0k,nr_inodes=1"))).Allow(uint16(unix.ENOENT))
		r.plan.Over(over)
	}
	r.plan.Add("move the root", unix.SYS_MOUNT, dot, plan.P(r.plan.String("/")), empty, plan.V(unix.MS_MOVE), empty)
	r.plan.Add("chroot", unix.SYS_CHROOT, dot)
	r.plan.Add("chdir /", unix.SYS_CHDIR, plan.P(r.plan.String("/")))
}
