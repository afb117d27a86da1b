package names

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/subprocess"
)

// next is the directory of a process that is to replace another one, until it does.
func (d directory) next() directory { return d + "-next" }

// Pid returns the process of a client that answers the sandboxes, 0 if none does.
func Pid(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.phase.serves() || c.state.process == nil {
		return 0
	}
	return c.state.process.Pid
}

// Renew replaces the process by one of the present program. Both have the same sockets, and no question is lost: the process before
// answers those that it has read. If the new process does not start, the one before continues.
func (c *Client) Renew(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.phase != phaseServing {
		return fmt.Errorf("name server: it does not serve now: %w", errdefs.ErrUnavailable)
	}
	for id := range c.boxes {
		if err := errors.Join(c.keepLocked(id), keepReportsLocked(c, id)); err != nil {
			return fmt.Errorf("name server: the sockets of %s: %w", id, err)
		}
	}
	before, dir := c.state, c.dir
	c.state, c.dir = &state{}, dir.next()
	err := c.startLocked(ctx)
	if err == nil {
		err = c.updateLocked(false)
	}
	if err == nil && c.state.phase != phaseServing {
		err = errShort
	}
	if err != nil {
		if line := subprocess.LastLine(c.dir.log()); line != "" {
			err = fmt.Errorf("%w: %s", err, line)
		}
		c.killLocked()
		if c.state.retry != nil {
			c.state.retry.Stop()
		}
		err = errors.Join(err, c.dir.remove())
		c.state, c.dir = before, dir
		return fmt.Errorf("name server: the new process does not start, and the one before continues: %w", err)
	}
	now := c.state
	c.state = before
	if _, err := c.callLocked(request{Op: opRetire}, nil); err != nil && c.state.process != nil { // it is of an earlier release, or hangs
		_ = c.state.process.Kill()
	}
	_ = before.conn.Close()
	if before.process != nil {
		_ = before.process.Release()
	}
	c.state = now
	err = dir.replace(c.dir)
	if c.dir = dir; err != nil {
		c.killLocked() // nobody could connect to it
		return errors.Join(err, c.restoreLocked(ctx))
	}
	c.watch(c.state.conn)
	return nil
}

// replace moves the files of the next process here. Agents find it by its socket, which comes first.
func (d directory) replace(next directory) error {
	if err := os.Rename(next.socket(), d.socket()); err != nil {
		return err
	}
	return errors.Join(os.Rename(next.pidFile(), d.pidFile()), os.Rename(next.log(), d.log()), next.remove())
}

// dropNext ends a process that was to replace another one, when the agent died in between.
func (d directory) dropNext() error {
	if _, err := os.Stat(d.next().socket()); err == nil {
		if p := d.next().process(); p != nil {
			_ = p.Kill()
			_ = p.Release()
		}
	}
	return d.next().remove()
}
