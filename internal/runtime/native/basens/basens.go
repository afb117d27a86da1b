// Package basens keeps an almost empty mount namespace, from which containers
// start.
//
// A new mount namespace is a copy of all that is mounted where it is made, which
// on a node with five hundred containers is thousands of mounts, and the
// container lets go of each at once. So a container starts from a namespace
// with next to nothing in it: copies of its root and of what is bound into it
// are taken along detached, and the host's tree is never in it at all.
//
// It must not know what a container is. Start at Keep.
package basens

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The almost empty namespace has proc on /proc, which names descriptors to
// mount(2), a null device of its own at Null, which hides files, and Root to mount
// the root on. It is read-only, and what is bound from it is, too: Blank, which
// hides directories, and Cgroup with a place for each v1 hierarchy. Each
// container could have file systems of its own for these, but the kernel's work
// for any cgroup that goes grows with their number.
const (
	Null   = "/dev/null"
	Root   = "/root"
	Blank  = "/blank"
	Cgroup = "/cgroup"
)

// name is where it is pinned. One that an agent of another version has made
// is used too: what is in it may only change with the name.
func name(hierarchies []string) string {
	sum := fnv.New64a()
	for _, h := range hierarchies {
		_, _ = sum.Write([]byte(h + "\n"))
	}
	return fmt.Sprintf("mnt-3-%x", sum.Sum64())
}

// Keep sees to it that the almost empty namespace is pinned below dir, and
// returns the file that stands for it. One that is there already is used, unless
// something in it is not as it was made: wrong says what, of one that was made
// anew. hierarchies are the directories of the v1 ones below /sys/fs/cgroup, like
// "cpu,cpuacct", which is then found as "cpu" too.
func Keep(dir string, hierarchies []string) (file string, wrong, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	file = filepath.Join(dir, name(hierarchies))
	var st unix.Statfs_t
	if err := unix.Statfs(file, &st); err == nil && st.Type == unix.NSFS_MAGIC {
		if wrong = Check(file); wrong == nil {
			return file, nil, hide(dir)
		}
	}
	return file, wrong, renew(dir, file, hierarchies)
}

// renew makes the namespace. What is pinned is of another version, of other
// hierarchies, or broken; containers that run keep theirs.
func renew(dir, file string, hierarchies []string) error {
	if err := Release(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The kernel pins no mount namespace where the pin could spread.
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	err := hide(dir)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err == nil {
		err = pin(dir, file, hierarchies)
	}
	if err != nil {
		return errors.Join(err, Release(dir))
	}
	return nil
}

// hide has nobody else take the pin along: a container whose volume is the
// host's root, or all of /run, could not have it mounted, as the kernel moves no
// tree with a mount namespace in it that is older than the one it is moved to.
// What is unbindable is private too.
func hide(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""); err != nil {
		return &os.PathError{Op: "make unbindable", Path: dir, Err: err}
	}
	return nil
}

// Release unmounts what Keep has mounted.
func Release(dir string) error {
	pins, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range pins {
		_ = unix.Unmount(filepath.Join(dir, p.Name()), unix.MNT_DETACH)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return os.RemoveAll(dir)
}

// pin makes the namespace and pins it. The kernel pins only one that is
// younger than ours, and takes the order of their numbers for that of their
// births: since it gives numbers out per processor (Linux 6.18), one made on
// another than ours was may look older. So each processor has its try.
func pin(dir, file string, hierarchies []string) error {
	err := pinFrom(dir, file, hierarchies, nil)
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return err
	}
	for cpu := 0; errors.Is(err, unix.EINVAL) && cpu < 8*int(unsafe.Sizeof(allowed)); cpu++ {
		if allowed.IsSet(cpu) {
			one := new(unix.CPUSet)
			one.Set(cpu)
			err = pinFrom(dir, file, hierarchies, one)
		}
	}
	return err
}

// pinFrom makes the namespace, on a processor that on allows, and pins it; nil is
// any.
func pinFrom(dir, file string, hierarchies []string, on *unix.CPUSet) error {
	return onThread(func() error {
		if on != nil {
			if err := unix.SchedSetaffinity(0, on); err != nil {
				return os.NewSyscallError("sched_setaffinity", err)
			}
		}
		return enter(dir, hierarchies)
	}, func(tid int) error {
		if err := unix.Mount("/proc/self/task/"+strconv.Itoa(tid)+"/ns/mnt", file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin a mount namespace: %w", err)
		}
		return nil
	})
}

// onThread runs inside on a thread that ends afterwards, which may so change its
// namespaces, and then, if that went well, outside on another one, with the id of
// the first.
func onThread(inside func() error, outside func(tid int) error) error {
	type result struct {
		tid int
		err error
	}
	there, over := make(chan result), make(chan struct{})
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
		there <- result{unix.Gettid(), inside()}
		<-over // never unlocked: the thread ends with the goroutine
	}
	go begin()
	r := <-there
	defer close(over)
	if r.err != nil {
		return r.err
	}
	return outside(r.tid)
}

// enter moves this thread into a mount namespace with a small read-only
// tmpfs and what plans need of the host.
func enter(dir string, hierarchies []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC, ""},
		{"tmpfs", dir, "tmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=700,size=64k,nr_inodes=128"},
		{"proc", dir + "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"", dir, "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC, ""},
	} {
		if m.fstype == "proc" {
			if err := furnish(dir, hierarchies); err != nil {
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

func furnish(dir string, hierarchies []string) error {
	for _, d := range []string{"proc", "dev", Root, Blank, Cgroup} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, h := range hierarchies {
		if err := os.Mkdir(filepath.Join(dir, Cgroup, h), 0o755); err != nil {
			return err
		}
		for _, link := range Links(h) {
			if err := os.Symlink(h, filepath.Join(dir, Cgroup, link)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	// Not the host's: where that is replaced, a mount of it cannot be copied any
	// more, and a program with a container's root could change its mode.
	return makeNull(dir + Null)
}

// Links are the names that lead to a hierarchy of several controllers.
func Links(hierarchy string) []string {
	if !strings.Contains(hierarchy, ",") {
		return nil
	}
	return strings.Split(hierarchy, ",")
}
