package names

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/shortage"
)

// holderRecord is our record of the sockets in the holder.
type holderRecord struct {
	sandboxes map[core.ID]bool
	// known says that the holder's list was read, and that sockets of no sandbox were dropped.
	known  bool
	warned bool // that it does not keep them
}

// heldPrefix starts the names of our sockets.
const heldPrefix = "names/"

// holderTime is the timeout of a request to the holder. All other requests wait meanwhile.
const holderTime = 10 * time.Second

// addLocked sends a sandbox with its sockets. With waits set, its questions wait for zones.
func (c *Client) addLocked(b Box, waits bool) error {
	if len(c.kept[b.Sandbox]) == 0 {
		files, err := c.receiveLocked(b)
		if err != nil {
			return err
		}
		c.kept[b.Sandbox] = files
	}
	again := len(c.kept[b.Sandbox]) > 0
	if !again {
		s, err := listen(b.Namespace, c.o.Redirect)
		if err != nil {
			return err
		}
		c.kept[b.Sandbox] = s.files()
	}
	c.holdLocked(b.Sandbox)
	_, err := c.callLocked(request{Op: opAdd, Sandbox: b.Sandbox, Networks: b.Networks, Upstream: b.Upstream, Egress: b.Egress, Again: again, Wait: waits}, c.kept[b.Sandbox])
	if err != nil {
		return err
	}
	return limitLocked(c, b)
}

// keepLocked asks the process for the sockets of a sandbox, which an earlier agent has opened.
func (c *Client) keepLocked(id core.ID) error {
	if len(c.kept[id]) > 0 {
		return nil
	}
	_, files, err := c.exchangeLocked(request{Op: opSockets, Sandbox: id}, nil, c.patienceLocked())
	switch {
	case errors.Is(err, errShort):
		return err
	case errors.Is(err, errRefused): // of an earlier release
		return nil
	}
	c.kept[id] = files
	c.holdLocked(id)
	return err
}

// holdLocked has the holder keep the sockets of a sandbox. Without it, the sandbox is answered all
// the same.
func (c *Client) holdLocked(id core.ID) {
	if c.o.Holder == nil || c.held.sandboxes[id] || len(c.kept[id]) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	if err := c.o.Holder.Hold(ctx, heldPrefix+string(id), c.kept[id]); err != nil {
		if !c.held.warned {
			c.o.Logger.Warn("the keeper does not keep the sockets of name servers: sandboxes' questions are refused while both the agent and the name server are dead", "error", err.Error())
		}
		c.held.warned = true
		return
	}
	if c.held.sandboxes == nil {
		c.held.sandboxes = map[core.ID]bool{}
	}
	c.held.sandboxes[id], c.held.warned = true, false
}

// receiveLocked returns the sockets of a sandbox that the holder has from an earlier agent; nil when there are
// none, or when they are in another network namespace than the sandbox is. It fails when a shortage
// keeps them from being received.
func (c *Client) receiveLocked(b Box) ([]*os.File, error) {
	if c.o.Holder == nil || c.held.known && !c.held.sandboxes[b.Sandbox] {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	files, err := c.o.Holder.Held(ctx, heldPrefix+string(b.Sandbox))
	same := false
	if err == nil && len(files) == 2 {
		same, err = areIn(files, b.Namespace)
	}
	if same {
		return files, nil
	}
	closeAll(files)
	switch {
	case shortage.Is(err) || errdefs.IsResourceExhausted(err):
		return nil, fmt.Errorf("%w: receive the sockets that the keeper keeps: %w", errShort, err)
	case err != nil && !errdefs.IsNotFound(err):
		c.o.Logger.Warn("could not receive the sockets of a sandbox's name server from the keeper; it gets new ones", "sandbox", string(b.Sandbox), "error", err.Error())
	}
	delete(c.held.sandboxes, b.Sandbox) // the new ones take their place
	return nil, nil
}

// areIn reports whether sockets are in a network namespace.
func areIn(sockets []*os.File, namespace string) (bool, error) {
	var want, have unix.Stat_t
	if err := unix.Stat(namespace, &want); err != nil {
		return false, err
	}
	for _, f := range sockets {
		raw, err := f.SyscallConn()
		if err != nil {
			return false, err
		}
		err2 := raw.Control(func(fd uintptr) {
			var ns int
			if ns, err = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS); err == nil {
				err = unix.Fstat(ns, &have)
				_ = unix.Close(ns)
			}
		})
		if err = errors.Join(err, err2); err != nil {
			return false, fmt.Errorf("find the network namespace of a socket: %w", err)
		}
		if have.Ino != want.Ino || have.Dev != want.Dev {
			return false, nil
		}
	}
	return true, nil
}

// unholdLocked has the holder close the sockets of a sandbox.
func (c *Client) unholdLocked(ctx context.Context, id core.ID) error {
	if c.o.Holder == nil || c.held.known && !c.held.sandboxes[id] {
		return nil
	}
	if err := c.o.Holder.Drop(ctx, heldPrefix+string(id)); err != nil {
		return fmt.Errorf("close the sockets of the name server: %w", err)
	}
	delete(c.held.sandboxes, id)
	return nil
}

// Sandboxes returns the sandboxes that have sockets in the holder.
func (c *Client) Sandboxes(ctx context.Context) (ids []core.ID, err error) {
	if c.o.Holder == nil {
		return nil, nil
	}
	names, err := c.o.Holder.Names(ctx)
	for _, name := range names {
		if id, ours := strings.CutPrefix(name, heldPrefix); ours {
			ids = append(ids, core.ID(id))
		}
	}
	return ids, err
}

// sweepLocked lists the holder's sockets and drops those of no sandbox.
func (c *Client) sweepLocked(ctx context.Context) {
	ids, err := c.Sandboxes(ctx)
	c.held.sandboxes = map[core.ID]bool{}
	for _, id := range ids {
		c.held.sandboxes[id] = true
		if c.boxes[id].Sandbox == "" {
			err = errors.Join(err, c.unholdLocked(ctx, id))
		}
	}
	if c.held.known = err == nil; err != nil {
		c.o.Logger.WarnContext(ctx, "could not find out which sockets of name servers the keeper keeps", "error", err.Error())
	}
}

// holdAgainLocked has the sockets kept again after keeper and holder have died.
func (c *Client) holdAgainLocked() {
	if c.o.Holder == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	ids, err := c.Sandboxes(ctx)
	if err != nil {
		return // the next time, then
	}
	has := map[core.ID]bool{}
	for _, id := range ids {
		has[id] = true
	}
	for id := range c.kept {
		if !has[id] {
			delete(c.held.sandboxes, id)
			c.holdLocked(id)
		}
	}
}
