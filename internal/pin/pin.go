// Package pin makes namespaces that live without a process: a thread leaves the
// host's namespaces, its own are bind-mounted on files, the thread ends. It is
// the engine's core.Pinner, and the reason why a sandbox needs no pause process.
//
// It must not know what a sandbox is for, nor set up any link but lo. Start
// reading at Pins.Pin; userns.go has the one case that a thread cannot do.
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

// Options go with New.
type Options struct {
	// Dir holds a directory per sandbox, and in it a file per namespace. It is
	// made when it is not there.
	Dir string
	// Make makes user namespaces; nil is none.
	Make MakeFunc
	// Spare has network namespaces ready; nil is none. It stays the caller's.
	Spare *Spare
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// Pins is core.Pinner on this machine.
type Pins struct {
	dir   string
	make  MakeFunc
	spare *Spare
	log   *slog.Logger
}

var _ core.Pinner = (*Pins)(nil)

// New makes the directory and returns the Pins of it.
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
	return &Pins{dir: o.Dir, make: o.Make, spare: o.Spare, log: o.Logger}, nil
}

// kind is one kind of namespace that can be pinned.
type kind struct {
	flag uintptr
	file string // its name below /proc/PID/ns, and of the file it is pinned on
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

// Pin makes the asked kinds together and returns the path of each. Hostname and
// Domainname need the UTS kind, a sysctl the kind it belongs to: what would
// change the host is InvalidArgument. AlreadyExists when the sandbox has pins.
func (p *Pins) Pin(ctx context.Context, req core.PinRequest) (map[specs.LinuxNamespaceType]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := check(req); err != nil {
		return nil, fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
	}
	dir := filepath.Join(p.dir, string(req.Sandbox))
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("pin namespaces of %s: %s is there: %w", req.Sandbox, dir, errdefs.ErrAlreadyExists)
		}
		return nil, fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
	}
	paths := make(map[specs.LinuxNamespaceType]string, len(req.Kinds))
	for _, t := range req.Kinds {
		k, _ := kindOf(t)
		paths[t] = filepath.Join(dir, k.file)
	}
	var err error
	if slices.Contains(req.Kinds, specs.UserNamespace) {
		err = p.pinUser(ctx, req, paths)
	} else {
		err = onThread(func() error { return p.pinHere(req, paths) })
	}
	if err != nil {
		err = fmt.Errorf("pin namespaces of %s: %w", req.Sandbox, err)
		return nil, errors.Join(err, p.Unpin(context.WithoutCancel(ctx), req.Sandbox))
	}
	return paths, nil
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
	if (req.Hostname != "" || req.Domainname != "") && !slices.Contains(req.Kinds, specs.UTSNamespace) {
		return fmt.Errorf("a host name without a uts namespace would be the host's: %w", errdefs.ErrInvalidArgument)
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
			return fmt.Errorf("sysctl %s without a %s namespace would be the host's: %w", s.Name, s.Kind, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// pinHere leaves the host's namespaces with the calling thread, which must end
// afterwards, sets the new ones up and pins them.
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
	if err := furnish(req); err != nil {
		return err
	}
	return bind(fmt.Sprintf("/proc/self/task/%d", unix.Gettid()), paths)
}

// furnish sets up the namespaces that the calling thread is in.
func furnish(req core.PinRequest) error {
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

// bind pins the namespaces of a process or thread, named by its directory in
// /proc.
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

// onThread runs fn on a thread of its own that ends with it, so that what fn
// does to the thread never reaches other goroutines.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	var try func()
	try = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot end: it would stay for ever in what fn
			// made, and /proc/self would show that. Keep it busy meanwhile.
			again := make(chan struct{})
			go func() { defer close(again); try() }()
			<-again
			runtime.UnlockOSThread()
			return
		}
		done <- fn() // never unlocked: the thread ends with the goroutine
	}
	go try()
	return <-done
}

// Unpin lets go of a sandbox's namespaces; the kernel ends each when nothing
// else holds it. It succeeds when there is nothing.
func (p *Pins) Unpin(_ context.Context, sandbox core.ID) error {
	name := string(sandbox)
	if name == "" || name != filepath.Base(name) || name[0] == '.' {
		return fmt.Errorf("unpin namespaces: bad sandbox ID %q: %w", name, errdefs.ErrInvalidArgument)
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

// Pinned names the sandboxes that have a directory here, whether its pins are
// whole or not.
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
