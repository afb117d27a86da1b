// Package pin makes namespaces that live without a process: a thread leaves the host's
// namespaces, its new ones are bind-mounted on files, and the thread ends. It is the
// engine's core.Pinner, and the reason why a sandbox needs no pause process.
//
// It must not know the purpose of a sandbox, nor set up any link but lo. Start reading at Pins.Pin;
// userns.go has the one case that a thread cannot handle.
package pin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sysctl"
)

// Options configure Pins.
type Options struct {
	// Dir holds a directory per sandbox, with a file per namespace. New makes it if it
	// does not exist.
	Dir string
	// Make makes user namespaces. If it is nil, they are refused.
	Make MakeFunc
	// Spare, unless nil, has unused network namespaces. The caller closes it.
	Spare *Spare
	// Ready keeps unused user namespaces ready too, with the namespaces that they own. The caller closes Pins.
	Ready bool
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Pins implements core.Pinner on this machine.
type Pins struct {
	dir   string
	make  MakeFunc
	spare *Spare
	users *spareUsers // nil if none are kept
	log   *slog.Logger
}

var _ core.Pinner = (*Pins)(nil)

// New makes the directory and returns its Pins.
func New(o Options) (*Pins, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("pin namespaces: directory %q is not absolute: %w", o.Dir, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("pin namespaces: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	p := &Pins{dir: o.Dir, make: o.Make, spare: o.Spare, log: o.Logger}
	if o.Ready && o.Make != nil {
		p.users = &spareUsers{make: o.Make}
	}
	return p, nil
}

// Close closes the namespaces that are kept ready. Those of sandboxes stay.
func (p *Pins) Close() error {
	if p.users != nil {
		p.users.close()
	}
	return nil
}

// kind is one kind of namespace that can be pinned.
type kind struct {
	flag uintptr
	file string // name below /proc/PID/ns, and of the file that pins it
}

func kindOf(t specs.LinuxNamespaceType) (kind, bool) {
	switch t {
	case specs.NetworkNamespace:
		return kind{unix.CLONE_NEWNET, "net"}, true
	case specs.IPCNamespace:
		return kind{unix.CLONE_NEWIPC, "ipc"}, true
	case specs.UTSNamespace:
		return kind{unix.CLONE_NEWUTS, "uts"}, true
	case specs.UserNamespace:
		return kind{unix.CLONE_NEWUSER, "user"}, true
	default:
		return kind{}, false
	}
}

// Pin makes and pins the requested kinds of namespaces, pins those of Join, and returns the path of each.
// Hostname and Domainname need the UTS kind, and a sysctl the kind it belongs to; a
// request that would change the host fails with InvalidArgument. It fails with
// AlreadyExists if the sandbox has pins.
func (p *Pins) Pin(ctx context.Context, req core.PinRequest) (map[specs.LinuxNamespaceType]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := check(req); err != nil {
		return nil, fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
	}
	dir := filepath.Join(p.dir, string(req.Sandbox))
	paths := make(map[specs.LinuxNamespaceType]string, len(req.Kinds)+len(req.Join))
	for _, t := range req.Kinds {
		k, _ := kindOf(t)
		paths[t] = filepath.Join(dir, k.file)
	}
	if req.Rest {
		for t := range req.Join {
			paths[t] = filepath.Join(dir, joinedFile(t))
		}
		return paths, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("pin namespaces of %s: %s already exists: %w", req.Sandbox, dir, errdefs.ErrAlreadyExists)
		}
		return nil, fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
	}
	var err error
	switch {
	case slices.Contains(req.Kinds, specs.UserNamespace):
		err = p.pinUser(ctx, req, paths)
	case len(req.Kinds) > 0:
		err = onThread(func() error { return p.pinHere(req, paths) })
	}
	for t, from := range req.Join {
		if err == nil {
			paths[t] = filepath.Join(dir, joinedFile(t))
			err = bindTo(from, t, paths[t])
		}
	}
	if err != nil {
		err = fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
		return nil, errors.Join(err, p.Unpin(context.WithoutCancel(ctx), req.Sandbox))
	}
	return paths, nil
}

// joinedFile returns the name of the file that pins a namespace of another sandbox.
func joinedFile(t specs.LinuxNamespaceType) string {
	if k, ok := kindOf(t); ok {
		return k.file
	}
	return string(t)
}

func check(req core.PinRequest) error {
	if name := string(req.Sandbox); name == "" || name != filepath.Base(name) || name[0] == '.' {
		return fmt.Errorf("bad sandbox ID %q: %w", name, errdefs.ErrInvalidArgument)
	}
	for _, t := range req.Kinds {
		if _, ok := kindOf(t); !ok {
			return fmt.Errorf("a %s namespace cannot be pinned: %w", t, errdefs.ErrInvalidArgument)
		}
	}
	for t := range req.Join {
		if _, ok := kindOf(t); !ok && t != specs.PIDNamespace || t == specs.UserNamespace || slices.Contains(req.Kinds, t) {
			return fmt.Errorf("a %s namespace cannot be joined: %w", t, errdefs.ErrInvalidArgument)
		}
	}
	if (req.Hostname != "" || req.Domainname != "") && !slices.Contains(req.Kinds, specs.UTSNamespace) {
		return fmt.Errorf("a host name needs a uts namespace: %w", errdefs.ErrInvalidArgument)
	}
	if slices.Contains(req.Kinds, specs.UserNamespace) && (len(req.UIDs) == 0 || len(req.GIDs) == 0) {
		return fmt.Errorf("a user namespace needs id mappings: %w", errdefs.ErrInvalidArgument)
	}
	settings, err := sysctl.ParseAll(req.Sysctls)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if !slices.Contains(req.Kinds, s.Kind) {
			return fmt.Errorf("sysctl %s needs a %s namespace: %w", s.Name, s.Kind, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// pinHere moves the calling thread into new namespaces, sets them up and pins them. The
// thread must end afterwards.
func (p *Pins) pinHere(req core.PinRequest, paths map[specs.LinuxNamespaceType]string) error {
	var flags uintptr
	for t := range paths {
		k, _ := kindOf(t)
		flags |= k.flag
	}
	if flags&unix.CLONE_NEWNET != 0 && p.spare != nil {
		if file := p.spare.Take(); file != nil {
			err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			if err = errors.Join(err, file.Close()); err != nil {
				return fmt.Errorf("enter the network namespace: %w", err)
			}
			flags &^= unix.CLONE_NEWNET
		}
	}
	if flags != 0 {
		if err := unix.Unshare(int(flags)); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
	}
	if err := setUp(req); err != nil {
		return err
	}
	return bind(fmt.Sprintf("/proc/self/task/%d", unix.Gettid()), paths)
}

// setUp sets up the namespaces of the calling thread.
func setUp(req core.PinRequest) error {
	if req.Hostname != "" {
		if err := unix.Sethostname([]byte(req.Hostname)); err != nil {
			return fmt.Errorf("set host name %q: %w", req.Hostname, err)
		}
	}
	if req.Domainname != "" {
		if err := unix.Setdomainname([]byte(req.Domainname)); err != nil {
			return fmt.Errorf("set domain name %q: %w", req.Domainname, err)
		}
	}
	if slices.Contains(req.Kinds, specs.NetworkNamespace) {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
	}
	settings, err := sysctl.ParseAll(req.Sysctls)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if err := s.Set(); err != nil {
			return err
		}
	}
	return nil
}

// bind pins the namespaces of a process or thread, given by its directory in /proc.
func bind(proc string, paths map[specs.LinuxNamespaceType]string) error {
	for t, path := range paths {
		k, _ := kindOf(t)
		if err := bindTo(proc+"/ns/"+k.file, t, path); err != nil {
			return err
		}
	}
	return nil
}

func bindTo(from string, t specs.LinuxNamespaceType, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s namespace on %s: %w", t, path, err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// onThread runs fn on a thread that ends with it, so that changes of the thread do not
// affect other goroutines.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	var try func()
	try = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot end, and /proc/self would show the namespaces that
			// fn has left it in. Keep it busy meanwhile.
			again := make(chan struct{})
			go func() { defer close(again); try() }()
			<-again
			runtime.UnlockOSThread()
			return
		}
		done <- fn() // without unlocking, the thread ends with its goroutine
	}
	go try()
	return <-done
}

// Unpin removes a sandbox's pins; the kernel ends each namespace when nothing else uses
// it. It succeeds if there are no pins.
func (p *Pins) Unpin(_ context.Context, sandbox core.ID) error {
	name := string(sandbox)
	if name == "" || name != filepath.Base(name) || name[0] == '.' {
		return fmt.Errorf("unpin namespaces: bad sandbox ID %q: %w", name, errdefs.ErrInvalidArgument)
	}
	if p.users != nil {
		defer p.users.ended(sandbox)
	}
	dir := filepath.Join(p.dir, name)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unpin namespaces of %s: %w", sandbox, err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		for err = nil; err == nil; {
			err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unpin namespaces of %s: %w", sandbox, err)
	}
	return nil
}

// Pinned returns the sandboxes that have a directory, whether their pins are complete or
// not.
func (p *Pins) Pinned(_ context.Context) ([]core.ID, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("list pinned namespaces: %w", err)
	}
	var ids []core.ID
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, core.ID(e.Name()))
		}
	}
	return ids, nil
}
