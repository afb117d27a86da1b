// Package basens keeps the base namespace: an almost empty mount namespace that containers start
// from.
//
// A new mount namespace is a copy of all mounts of its parent. On a node with five hundred
// containers these are thousands, and each new container would unmount them at once. A container
// therefore starts from a namespace with almost no mounts. Copies of its root and of its bind
// sources are taken along detached, and the host's mounts are never in it.
//
// It must not know containers. Start at Keep.
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

// The base namespace has a proc on /proc, which gives descriptors a path for mount(2), a null
// device of its own at Null, which hides files, and the directory Root, the place of the root
// mount. It is read-only, and so are binds of its parts: Blank, which hides directories, and
// Cgroup, with a directory for each v1 hierarchy. Each container could have file systems of its own
// for these, but the removal of any cgroup gets slower with each file system.
const (
	Null   = "/dev/null"
	Root   = "/root"
	Blank  = "/blank"
	Cgroup = "/cgroup"
)

// name is the file where the namespace is pinned. A namespace that an agent of another
// version has made is used too, so any change of the content needs a new name.
func name(hierarchies []string) string {
	sum := fnv.New64a()
	for _, h := range hierarchies {
		_, _ = sum.Write([]byte(h + "\n"))
	}
	return fmt.Sprintf("mnt-4-%x", sum.Sum64())
}

// Keep makes sure that the base namespace is pinned below dir, and returns its file. It uses an
// existing one unless its content has changed; then it makes a new one, and wrong is the difference
// of the old one. hierarchies are the directories of the v1 hierarchies below /sys/fs/cgroup, such
// as "cpu,cpuacct", which gets the link "cpu" too.
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

// renew replaces the namespace, because the pinned one is missing, has other hierarchies, or is
// broken. Running containers keep theirs.
func renew(dir, file string, hierarchies []string) error {
	if err := Release(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The kernel refuses to pin a mount namespace on a shared mount.
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

// hide makes the pin unbindable, so that no other mount namespace gets a copy of it. A
// container with the host's root or all of /run as a volume could otherwise not have it
// mounted: the kernel refuses to attach a tree that contains a mount namespace older
// than the one it is attached to. An unbindable mount is private too.
func hide(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""); err != nil {
		return &os.PathError{Op: "make unbindable", Path: dir, Err: err}
	}
	return nil
}

// Release removes the mounts of Keep.
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

// pin makes the namespace and pins it. The kernel pins only a namespace that is younger
// than the caller's, and compares their numbers for that. Linux 6.18 and later assign
// numbers per processor, so a namespace made on another processor may look older. pin
// therefore tries every processor.
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

// pinFrom makes the namespace on the processors of on and pins it; nil means any
// processor.
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

// onThread runs inside on a thread that ends afterwards, so that it may change its
// namespaces. If that succeeds, it runs outside on another thread, with the ID of the
// first.
func onThread(inside func() error, outside func(tid int) error) error {
	type result struct {
		tid int
		err error
	}
	entered, release := make(chan result), make(chan struct{})
	var begin func()
	begin = func() {
		runtime.LockOSThread()
		if tid := unix.Gettid(); tid == os.Getpid() {
			// The main thread cannot end, so keep it busy while another thread runs
			// inside.
			other := make(chan struct{})
			go func() { defer close(other); begin() }()
			<-other
			runtime.UnlockOSThread()
			return
		}
		entered <- result{unix.Gettid(), inside()}
		<-release // without unlocking, the thread ends with its goroutine
	}
	go begin()
	r := <-entered
	defer close(release)
	if r.err != nil {
		return r.err
	}
	return outside(r.tid)
}

// enter moves this thread into a new mount namespace, with a small read-only tmpfs and the host's
// parts that plans need.
func enter(dir string, hierarchies []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	// The root of a user namespace passes the tmpfs too, on the way to its own root.
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC, ""},
		{"tmpfs", dir, "tmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=711,size=64k,nr_inodes=128"},
		{"proc", dir + "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"", dir, "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC, ""},
	} {
		if m.fstype == "proc" {
			if err := setUp(dir, hierarchies); err != nil {
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

func setUp(dir string, hierarchies []string) error {
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
	// A new device, not the host's: a mount of that one could not be copied any more
	// after the host's was replaced, and a program with a container's root could change
	// its mode.
	return makeNull(dir + Null)
}

// Links returns the names of the links to a hierarchy with several controllers.
func Links(hierarchy string) []string {
	if !strings.Contains(hierarchy, ",") {
		return nil
	}
	return strings.Split(hierarchy, ",")
}
