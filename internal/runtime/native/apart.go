package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// A new mount namespace is a copy of all that is mounted where it is made, which
// on a node with five hundred containers is thousands of mounts, and the
// container lets go of each at once. So a container starts from a namespace
// with next to nothing in it: copies of its root and of what is bound into it
// are taken along detached, and the host's tree is never in it at all.

// The almost empty namespace has proc on /proc, which names descriptors to
// mount(2), the host's /dev/null, which hides files, and apartRoot to mount the
// root on.
const apartRoot = "/root"

// apartFile is where it is pinned. One that an agent of another version has made
// is used too: what is in it may only change with the name.
const apartFile = "mnt"

// keepApart sees to it that the almost empty namespace is pinned below dir, and
// returns the file that stands for it. One that is there already is used.
func keepApart(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, apartFile)
	var st unix.Statfs_t
	if err := unix.Statfs(file, &st); err == nil && st.Type == unix.NSFS_MAGIC {
		return file, hideApart(dir)
	}
	// The kernel pins no mount namespace where the pin could spread.
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return "", &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	err := hideApart(dir)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err == nil {
		err = pinApart(dir, file)
	}
	if err != nil {
		return "", errors.Join(err, releaseApart(dir))
	}
	return file, nil
}

// hideApart has nobody else take the pin along: a container whose volume is the
// host's root, or all of /run, could not have it mounted, as the kernel moves no
// tree with a mount namespace in it that is older than the one it is moved to.
// What is unbindable is private too.
func hideApart(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""); err != nil {
		return &os.PathError{Op: "make unbindable", Path: dir, Err: err}
	}
	return nil
}

// releaseApart unmounts what keepApart has mounted.
func releaseApart(dir string) error {
	_ = unix.Unmount(filepath.Join(dir, apartFile), unix.MNT_DETACH)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return os.RemoveAll(dir)
}

// pinApart makes the namespace and pins it. The kernel pins only one that is
// younger than ours, and takes the order of their numbers for that of their
// births: since it gives numbers out per processor (Linux 6.18), one made on
// another than ours was may look older. So each processor has its try.
func pinApart(dir, file string) error {
	err := pinFrom(dir, file, nil)
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return err
	}
	for cpu := 0; errors.Is(err, unix.EINVAL) && cpu < 8*int(unsafe.Sizeof(allowed)); cpu++ {
		if allowed.IsSet(cpu) {
			one := new(unix.CPUSet)
			one.Set(cpu)
			err = pinFrom(dir, file, one)
		}
	}
	return err
}

// pinFrom makes the namespace on a thread of its own, which ends in it, and runs
// where on says; nil is anywhere.
func pinFrom(dir, file string, on *unix.CPUSet) error {
	type made struct {
		tid int
		err error
	}
	there, pinned := make(chan made), make(chan struct{})
	var begin func()
	begin = func() {
		runtime.LockOSThread()
		if tid := unix.Gettid(); tid == os.Getpid() {
			// The main thread cannot end, and would stay in there: keep it
			// busy while another one does it.
			other := make(chan struct{})
			go func() { defer close(other); begin() }()
			<-other
			runtime.UnlockOSThread()
			return
		}
		var err error
		if on != nil {
			err = os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, on))
		}
		if err == nil {
			err = enterApart(dir)
		}
		there <- made{unix.Gettid(), err}
		<-pinned // never unlocked: the thread ends with the goroutine
	}
	go begin()
	m := <-there
	defer close(pinned)
	if m.err != nil {
		return m.err
	}
	if err := unix.Mount("/proc/self/task/"+strconv.Itoa(m.tid)+"/ns/mnt", file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin a mount namespace: %w", err)
	}
	return nil
}

// enterApart moves this thread into a mount namespace with a small read-only
// tmpfs and what plans need of the host.
func enterApart(dir string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC, ""},
		{"tmpfs", dir, "tmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=700,size=64k,nr_inodes=16"},
		{"proc", dir + "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"/dev/null", dir + "/dev/null", "", unix.MS_BIND, ""},
		{"", dir, "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC, ""},
	} {
		if m.fstype == "proc" {
			if err := furnishApart(dir); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return &os.PathError{Op: "mount", Path: m.target, Err: err}
		}
	}
	if err := unix.Chdir(dir); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	return os.NewSyscallError("umount2", unix.Unmount(".", unix.MNT_DETACH))
}

func furnishApart(dir string) error {
	for _, d := range []string{"proc", "dev", apartRoot} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "dev/null"), nil, 0o600)
}

// goesApart reports whether the container can start from the almost empty
// namespace: not where something of the host's tree is wanted later than its
// copies are taken, or is to change with the host's.
func (in *Input) goesApart() bool {
	s := in.Spec
	switch s.Linux.RootfsPropagation {
	case "", "slave", "rslave", "private", "rprivate":
	default:
		return false
	}
	cgroupns, mnt := false, false
	for _, ns := range s.Linux.Namespaces {
		switch ns.Type {
		case specs.UserNamespace, specs.TimeNamespace:
			return false
		case specs.MountNamespace:
			mnt = ns.Path == ""
		case specs.CgroupNamespace:
			cgroupns = ns.Path == ""
		}
	}
	for _, m := range s.Mounts {
		if (m.Type == "cgroup" || m.Type == "cgroup2") && !cgroupns {
			return false
		}
	}
	return in.Host.Apart != "" && mnt && !in.stops() && !in.Host.Initramfs && (s.Linux.Seccomp == nil || s.Linux.Seccomp.ListenerPath == "")
}

// leave takes copies of the root and of the binds' sources along into the almost
// empty namespace, a copy of which becomes the container's.
func (c *compiler) leave() error {
	empty := plan.P(c.String(""))
	root, _ := c.open("open tree of the root", unix.SYS_OPEN_TREE, plan.V(unix.AT_FDCWD), plan.P(c.String(c.in.Root)),
		plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	c.slave("the root", root)
	c.sources = map[int]int{}
	for i, m := range c.in.Spec.Mounts {
		o := ocispec.ParseMountOptions(m.Options)
		if !isBind(m, o) {
			continue
		}
		src, _, err := c.source(m, o)
		if err != nil {
			return fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		c.slave(m.Source, src)
		c.sources[i] = src
	}
	ns, _ := c.open("open the empty mount namespace", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(c.String(c.in.Host.Apart)), plan.V(unix.O_RDONLY|unix.O_CLOEXEC))
	c.Add("join the empty mount namespace", unix.SYS_SETNS, plan.V(ns), plan.V(unix.CLONE_NEWNS))
	c.shut(ns)
	c.Add("unshare the mount namespace", unix.SYS_UNSHARE, plan.V(unix.CLONE_NEWNS))
	c.Add("mount the root", unix.SYS_MOVE_MOUNT, plan.V(root), empty, plan.V(unix.AT_FDCWD), plan.P(c.String(apartRoot)), plan.V(unix.MOVE_MOUNT_F_EMPTY_PATH))
	return nil
}

// slave cuts a copy off from the mounts that its original shares changes with:
// it follows them, and they never follow it.
func (c *compiler) slave(what string, tree int) {
	c.Add("slave "+what, unix.SYS_MOUNT_SETATTR, plan.V(tree), plan.P(c.String("")), plan.V(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE),
		plan.P(c.Words(0, 0, unix.MS_SLAVE, 0)), plan.V(sizeofMountAttr))
}
