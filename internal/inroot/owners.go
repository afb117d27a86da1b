package inroot

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/treecopy"
)

// onThread runs fn on a thread of its own, which ends afterwards, so that fn may change the thread's state.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- fn()
	}()
	return <-result
}

// asRootOf runs fn so that the files that it creates belong to the root user of a container with these ids:
// the node's root has no id there, and a mount with mapped owners refuses its files. The capabilities stay.
// It must be called on a thread of its own.
func asRootOf(ids treecopy.IDs, fn func() error) error {
	if !ids.Mapped() {
		return fn()
	}
	uid, gid, ok := ids.Host(0, 0)
	if !ok {
		return fn() // the container has no root user
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	defer func() { _ = setOwner(0, 0) }() // if this is the main thread, it does not end with its goroutine
	if err := setOwner(uid, gid); err != nil {
		return err
	}
	if err := unix.Capset(&header, &have[0]); err != nil { // the change of the user removed those for files
		return fmt.Errorf("keep capabilities: %w", err)
	}
	return fn()
}

// setOwner sets the owner of files that this thread creates.
func setOwner(uid, gid int) error {
	if _, err := unix.SetfsgidRetGid(gid); err != nil {
		return fmt.Errorf("set the group of new files: %w", err)
	}
	if _, err := unix.SetfsuidRetUid(uid); err != nil {
		return fmt.Errorf("set the owner of new files: %w", err)
	}
	return nil
}

// userNamespace returns a user namespace with the container's ids, nil without ids.
func (c Container) userNamespace(ctx context.Context) (*os.File, error) {
	if !c.IDs.Mapped() || c.Namespaces == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	made, err := c.Namespaces(ctx, c.IDs.UIDs, c.IDs.GIDs, specs.UserNamespace)
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	return made[0], nil
}
