package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/subprocess"
)

// Renew replaces the process by one of the present program. Handles, servers and connections stay, and requests of programs wait for a
// moment. If the next process does not start or does not take over, the one before continues.
func (c *Client) Renew(ctx context.Context) error {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if _, there := c.Status(ctx); !there {
		return fmt.Errorf("board: no process answers: %w", errdefs.ErrUnavailable)
	}
	next, err := c.startNext(ctx) // programs get handles meanwhile
	if err != nil {
		return fmt.Errorf("board: the next process does not start, and the one before continues: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reachLocked(ctx) {
		_ = next.process.Kill()
		return errors.Join(fmt.Errorf("board: the process has ended: %w", errdefs.ErrUnavailable), next.socket.Close(), os.Remove(c.nextLog()))
	}
	_, _, err = c.callLocked(request{Op: opYield, Reads: next.reads}, next.socket)
	_ = next.socket.Close()
	if err == nil {
		c.hangUpLocked() // it ends
	}
	// Its end may have come before its answer. The process that answers now tells.
	if err == nil || ended(err) {
		err = c.becameLocked(next.process.Pid)
	}
	if err == nil {
		return os.Rename(c.nextLog(), c.log())
	}
	_ = next.process.Kill()
	return errors.Join(fmt.Errorf("board: the next process has not taken over: %w", err), os.Remove(c.nextLog()))
}

// becameLocked returns an error unless the process that answers is the one of this pid.
func (c *Client) becameLocked(pid int) error {
	if err := c.dialLocked(); err != nil {
		return err
	}
	r, err := c.helloLocked()
	if err == nil && r.Status.PID != pid {
		return fmt.Errorf("process %d continues", r.Status.PID)
	}
	return err
}

// nextProcess is a process that waits for the one before.
type nextProcess struct {
	process *os.Process
	socket  *os.File // to it, for the process before
	reads   int      // the number of the format of items that it reads
}

func (c *Client) nextLog() string { return c.log() + "-next" }

// startPatience is the time for the next process to start, in seconds.
const startPatience = 20

// startNext starts the next process.
func (c *Client) startNext(ctx context.Context) (nextProcess, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nextProcess{}, err
	}
	own, its := os.NewFile(uintptr(fds[0]), "next"), os.NewFile(uintptr(fds[1]), "before")
	p, err := c.launch(ctx, its, c.nextLog(), nextArg)
	_ = its.Close()
	if err == nil {
		var reads int
		if reads, err = greeted(fds[0]); err == nil {
			return nextProcess{p, own, reads}, nil
		}
		if line := subprocess.LastLine(c.nextLog()); line != "" {
			err = fmt.Errorf("%w: %s", err, line)
		}
		_ = p.Kill()
	}
	return nextProcess{}, errors.Join(err, own.Close(), os.Remove(c.nextLog()))
}

// greeted waits for the first message of the next process, and returns the number in it.
func greeted(fd int) (reads int, err error) {
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: startPatience}); err != nil {
		return 0, err
	}
	buf := make([]byte, 1024)
	n, _, _, err := receive(fd, buf, nil)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, errors.New("it has ended")
	}
	var m message
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return 0, fmt.Errorf("it says %.100q", buf[:n])
	}
	return m.Reads, nil
}
