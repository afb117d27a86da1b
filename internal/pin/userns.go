package pin

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sysctl"
)

// MakeFunc makes a user namespace with the given mappings and the others of kinds, which
// it owns. It returns a file for each of kinds, in their order.
type MakeFunc func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)

// pinUser pins a new user namespace and the others, which it owns so that its root may
// change them. This thread enters them (all but the user namespace itself) to set them
// up. A program with many threads cannot make a user namespace for itself, so
// Options.Make does.
func (p *Pins) pinUser(ctx context.Context, req core.PinRequest, paths map[specs.LinuxNamespaceType]string) error {
	if p.make == nil {
		return fmt.Errorf("a user namespace: not configured: %w", errdefs.ErrNotImplemented)
	}
	files, err := p.userNamespaces(ctx, req)
	if err != nil {
		return err
	}
	defer closeAll(files)
	for i, t := range req.Kinds {
		if err := bindTo(fmt.Sprintf("/proc/self/fd/%d", files[i].Fd()), t, paths[t]); err != nil {
			return err
		}
	}
	return onThread(func() error {
		for i, t := range req.Kinds {
			if t == specs.UserNamespace {
				continue
			}
			if err := unix.Setns(int(files[i].Fd()), 0); err != nil {
				return fmt.Errorf("enter the %s namespace: %w", t, err)
			}
		}
		return setUpMapped(req)
	})
}

// userNamespaces returns namespaces for req, in the order of its kinds: those that are ready, or new ones.
func (p *Pins) userNamespaces(ctx context.Context, req core.PinRequest) (files []*os.File, err error) {
	m := mappedOf(req)
	if p.users != nil {
		defer p.users.began(req.Sandbox, m)
		if files = p.users.take(m); files != nil {
			return files, nil
		}
	}
	return p.make(ctx, req.UIDs, req.GIDs, req.Kinds...)
}

// setUpMapped is setUp for namespaces that belong to a user namespace: since Linux
// 5.19, only that namespace's root may set parameters of its IPC namespace; before, only
// the host's root could. The calling thread must end afterwards.
func setUpMapped(req core.PinRequest) error {
	settings, err := sysctl.ParseAll(req.Sysctls)
	if err != nil {
		return err
	}
	var ipc []sysctl.Setting
	rest := req
	rest.Sysctls = map[string]string{}
	for _, s := range settings {
		if s.Kind == specs.IPCNamespace {
			ipc = append(ipc, s)
		} else {
			rest.Sysctls[s.Name] = s.Value
		}
	}
	if err := setUp(rest); err != nil {
		return err
	}
	became := false
	for _, s := range ipc {
		err := s.Set()
		if errors.Is(err, os.ErrPermission) && !became {
			root := uintptr(rootOf(req.UIDs))
			// A raw call, which affects this thread only.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, root, root, root); errno != 0 {
				return errors.Join(err, errno)
			}
			became = true
			err = s.Set()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rootOf returns the outside ID of a user namespace's root.
func rootOf(maps []specs.LinuxIDMapping) uint32 {
	for _, m := range maps {
		if m.ContainerID == 0 {
			return m.HostID
		}
	}
	return 0
}
