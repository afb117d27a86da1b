package pin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// helperName is Args[0] of the process that holds a user namespace until it is
// pinned.
const helperName = "longshore-hold-userns"

// Main reports whether this process was started to hold a user namespace, and
// if so has already done it: main must return. A program that uses Pins with
// Options.Helper "" calls it first thing, tests in TestMain.
//
// A thread of a multithreaded process cannot make a user namespace, so this one
// case needs a process; it waits until its input ends.
func Main() bool {
	if len(os.Args) == 0 || os.Args[0] != helperName {
		return false
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// pinUser has a short-lived process make all namespaces, so that the new user
// namespace owns the others, and enters them (all but the user namespace
// itself) to set them up.
func (p *Pins) pinUser(ctx context.Context, req core.PinRequest, paths map[specs.LinuxNamespaceType]string) (err error) {
	var flags uintptr
	for t := range paths {
		k, _ := kindOf(t)
		flags |= k.flag
	}
	hold := &exec.Cmd{
		Path: p.helper,
		Args: []string{helperName},
		Env:  []string{},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:                 flags,
			UidMappings:                mappings(req.UIDs),
			GidMappings:                mappings(req.GIDs),
			GidMappingsEnableSetgroups: true,
		},
	}
	in, err := hold.StdinPipe()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := hold.Start(); err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() {
		_ = in.Close()
		if werr := hold.Wait(); werr != nil {
			err = errors.Join(err, fmt.Errorf("hold the user namespace: %w", werr))
		}
	}()
	if err := bind(procDir(hold.Process.Pid), paths); err != nil {
		return err
	}
	return onThread(func() error {
		for t, path := range paths {
			if t == specs.UserNamespace {
				continue
			}
			if err := enter(path); err != nil {
				return err
			}
		}
		return furnish(req)
	})
}

func enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Setns(int(f.Fd()), 0); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

func mappings(in []specs.LinuxIDMapping) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, 0, len(in))
	for _, m := range in {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return out
}
