package granted

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/ocispec"
)

// mountsOf returns the request's own binds, by their path in the container.
func mountsOf(s *specs.Spec) map[string]specs.Mount {
	m := map[string]specs.Mount{}
	for _, mount := range s.Mounts {
		o := ocispec.ParseMountOptions(mount.Options)
		if o.Flags&unix.MS_BIND != 0 || mount.Type == "bind" {
			m[filepath.Clean(mount.Destination)] = mount
		}
	}
	return m
}

// rights returns an ordinary container's rights in each mount.
func rights(mounts map[string]specs.Mount) map[string]grant.Rights {
	all := map[string]grant.Rights{}
	for name, m := range mounts {
		all[name] = rightsOf(m)
	}
	// An ordinary container would not reach files that another mount covers. A mount of a part of the same directory
	// with fewer rights lowers those of the whole.
	for name, m := range mounts {
		for below, inner := range mounts {
			if rel, ok := beneath.Rel(name, below); ok && below != name && inner.Source == filepath.Join(m.Source, rel) {
				all[name] &= rightsOf(inner)
			}
		}
	}
	return all
}

func rightsOf(m specs.Mount) grant.Rights {
	o, r := ocispec.ParseMountOptions(m.Options), grant.AllRights
	if o.Flags&unix.MS_RDONLY != 0 || o.RecursiveSet&unix.MOUNT_ATTR_RDONLY != 0 {
		r &^= grant.Write
	}
	if o.Flags&unix.MS_NOEXEC != 0 {
		r &^= grant.Execute
	}
	return r
}

// covering returns the path of a mount below the one called name, which covers a part of it with something else; "" if there is none.
func (c carried) covering(name string) string {
	for _, m := range c.spec.Mounts {
		at := filepath.Clean(m.Destination)
		if rel, ok := beneath.Rel(name, at); ok && at != name && m.Source != filepath.Join(c.mounts[name].Source, rel) {
			return at
		}
	}
	return ""
}

// access returns a mount's rights. Without any said, a grant has all but Execute.
func access(g grant.Rights) (a core.Access) {
	for right, is := range map[grant.Rights]core.Access{grant.Read: core.AccessRead, grant.Write: core.AccessWrite, grant.Execute: core.AccessExecute} {
		if g&right != 0 {
			a |= is
		}
	}
	return a
}

// carried is the content of a request; a document can only name parts of it.
type carried struct {
	spec    *specs.Spec
	mounts  map[string]specs.Mount
	secrets secrets
	user    specs.User // as the host sees it
}

// grant opens the files of g.
func (h *opened) grant(g grant.Grant, has carried) error {
	switch g.Kind {
	case grant.Log:
		h.given = append(h.given, core.Given{})
		return nil
	case grant.Mount:
		a, name := access(g.Rights), filepath.Clean(g.Name)
		if other := has.covering(name); other != "" {
			return refused(fmt.Sprintf("a mount below which the request has another one, at %s,", other))
		}
		f, err := openMount(has.mounts[name], a, has.user)
		if err == nil {
			h.add(f, a)
		}
		return err
	case grant.Listen:
		f, err := listen(has.spec, g)
		if err == nil {
			h.add(f, 0)
		}
		return err
	case grant.Random:
		f, err := os.Open("/dev/urandom")
		if err == nil {
			h.add(f, 0)
		}
		return err
	case grant.Clock:
		fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
		if err != nil {
			return os.NewSyscallError("timerfd_create", err)
		}
		h.add(os.NewFile(uintptr(fd), "clock"), 0)
		return nil
	case grant.Secret:
		f, err := has.secrets.copied(g.Name)
		if err == nil {
			h.add(f, 0)
		}
		return err
	case grant.Shutdown:
		h.given = append(h.given, core.Given{Input: true})
		return nil
	case grant.Server, grant.Client, grant.Env:
	}
	return fmt.Errorf("runtime %s cannot grant this: %w", core.GrantHandler, errdefs.ErrNotImplemented)
}

// openMount opens a mount's source as the root of a mount of its own, which no path leads out of:
// it has no mount above it. A file is opened as the container's user could; a directory that the user may not list is one below which
// to open only.
func openMount(m specs.Mount, a core.Access, user specs.User) (f *os.File, err error) {
	o := ocispec.ParseMountOptions(m.Options)
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 {
		return nil, refused("a mount with mapped owners")
	}
	tree, err := cloneMount(m, o.Flags&unix.MS_REC != 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tree.Close() }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if a&core.AccessWrite == 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	st, err := tree.Stat()
	if err != nil {
		return nil, err
	}
	flags := unix.O_RDONLY
	switch {
	case st.IsDir():
		flags |= unix.O_DIRECTORY
	case !st.Mode().IsRegular():
		return nil, refused("a mount whose source is neither a directory nor a file")
	case a&core.AccessWrite != 0 && a&core.AccessRead != 0:
		flags = unix.O_RDWR
	case a&core.AccessWrite != 0:
		flags = unix.O_WRONLY
	}
	err = as(user, func() error {
		f, err = os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(tree.Fd())), flags, 0)
		if st.IsDir() && errors.Is(err, os.ErrPermission) {
			f, err = os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(tree.Fd())), unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		return err
	})
	return f, err
}

func cloneMount(m specs.Mount, recursive bool) (*os.File, error) {
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return nil, err
	}
	if base != "" {
		return beneath.Tree(base, rel, beneath.Copy{Recursive: recursive})
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, flags)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: m.Source, Err: err}
	}
	return os.NewFile(uintptr(fd), m.Source), nil
}

// sealed returns a text as a file that nobody can change.
func sealed(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	w := os.NewFile(uintptr(fd), name)
	defer func() { _ = w.Close() }()
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(fd))
}

// listen opens a listening socket in the sandbox's network.
func listen(s *specs.Spec, g grant.Grant) (f *os.File, err error) {
	netns := ""
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			if netns = ns.Path; netns == "" {
				return nil, fmt.Errorf("the container has a network of its own, in which nobody can connect: %w", errdefs.ErrFailedPrecondition)
			}
		}
	}
	open := func() {
		address := ":" + strconv.Itoa(int(g.Port))
		var sock interface{ File() (*os.File, error) }
		var closed func() error
		if g.Protocol == grant.UDP {
			var p net.PacketConn
			if p, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address); err == nil {
				sock, closed = p.(*net.UDPConn), p.Close //nolint:forcetypeassert // of network udp
			}
		} else {
			var l net.Listener
			if l, err = (&net.ListenConfig{Control: reuse}).Listen(context.Background(), "tcp", address); err == nil {
				sock, closed = l.(*net.TCPListener), l.Close //nolint:forcetypeassert // of network tcp
			}
		}
		if err != nil {
			return
		}
		f, err = sock.File()
		_ = closed()
	}
	if netns == "" {
		open()
	} else if e := inNetwork(netns, open); e != nil {
		return nil, e
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return f, err
}

func reuse(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
}

// inNetwork calls fn on a thread that is in a network namespace.
func inNetwork(file string, fn func()) error {
	ns, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked unless it is back: the thread ends with the goroutine
		own, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			fn()
			if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}
		_ = own.Close()
		done <- err
	}()
	return <-done
}

// openProgram finds the program in the container's root, as a process in there would, and opens it
// for execution only.
func openProgram(rootfs string, p *specs.Process) (*os.File, error) {
	root, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	name := p.Args[0]
	paths := []string{name}
	if !strings.Contains(name, "/") {
		search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		for _, e := range p.Env {
			if v, ok := strings.CutPrefix(e, "PATH="); ok {
				search = v
			}
		}
		paths = nil
		for _, dir := range filepath.SplitList(search) {
			paths = append(paths, filepath.Join("/", dir, name))
		}
	} else if !filepath.IsAbs(name) {
		paths[0] = filepath.Join("/", p.Cwd, name)
	}
	for _, path := range paths {
		f, err := beneath.In(root, path, unix.O_PATH, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			if err = checkProgram(f); err == nil {
				return f, nil
			}
			_ = f.Close()
		}
		return nil, &core.StartError{Errno: syscall.EACCES, Err: fmt.Errorf("exec %s: %w: %w", path, err, errdefs.ErrFailedPrecondition)}
	}
	return nil, &core.StartError{Errno: syscall.ENOENT, Err: fmt.Errorf("exec %s: no such program in the image: %w", name, errdefs.ErrNotFound)}
}

// checkProgram refuses programs that the kernel cannot execute without further files.
func checkProgram(f *os.File) error {
	st, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0:
		return errors.New("it is not a file that can be executed")
	}
	r, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return grant.CheckStatic(r)
}
