package names

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// phase is the progress of a client with its process.
type phase int

const (
	// phaseIdle: no process is connected, and no sandbox needs one.
	phaseIdle phase = iota
	// phaseLost: no process is connected, and sandboxes need one. A timer tries again.
	phaseLost
	// phaseGreeting: a running process, mostly an earlier agent's, is connected, and gets its differences from our state.
	phaseGreeting
	// phaseStarting: a new process is connected, and gets everything.
	phaseStarting
	// phaseServing: the process knows everything.
	phaseServing
	// phaseBehind: the process serves and lacks something, because descriptors or memory were used up when
	// it was to be sent. A timer sends everything again.
	phaseBehind
	// phaseClosed: Close was called. The process continues.
	phaseClosed
)

// serves reports whether a process answers the sandboxes, and takes changes.
func (p phase) serves() bool { return p == phaseServing || p == phaseBehind }

// connected reports whether a phase has a connection.
func (p phase) connected() bool { return p == phaseGreeting || p == phaseStarting || p.serves() }

// retries reports whether a timer leads out of a phase.
func (p phase) retries() bool { return p == phaseLost || p == phaseBehind }

// state is a phase with its data.
type state struct {
	phase phase
	conn  *net.UnixConn // of the phases that are connected
	// process is the process behind conn, when it has sent its pid.
	process *os.Process
	retry   *time.Timer // of the phases that retry
}

// identify stores the process behind the connection.
func (s *state) identify(pid int) {
	if s.process != nil {
		_ = s.process.Release()
	}
	s.process, _ = os.FindProcess(pid)
}

// enterLocked enters a phase. The connection stays if the new phase has one, and is closed otherwise.
func (c *Client) enterLocked(p phase) *state {
	old, s := c.state, &state{phase: p}
	if old.retry != nil {
		old.retry.Stop()
	}
	switch {
	case p.connected():
		s.conn, s.process = old.conn, old.process
	default:
		if old.conn != nil {
			_ = old.conn.Close()
		}
		if old.process != nil {
			_ = old.process.Release()
		}
	}
	if p.retries() {
		s.retry = time.AfterFunc(min(cmp.Or(c.o.Health, healthTime), shortTime), func() { c.retry(s) })
	}
	c.state = s
	return s
}

// disconnectLocked closes the connection to the process.
func (c *Client) disconnectLocked() {
	switch {
	case c.state.phase == phaseClosed:
	case len(c.boxes) > 0:
		c.enterLocked(phaseLost)
	default:
		c.enterLocked(phaseIdle)
	}
}

// retry is called by the timer of a state.
func (c *Client) retry(s *state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state != s: // it has changed meanwhile
	case s.phase == phaseBehind:
		c.catchUpLocked()
	case len(c.boxes) == 0:
		c.enterLocked(phaseIdle)
	case c.connectLocked(context.Background(), false) == nil && c.state.phase == phaseServing:
		c.o.Logger.Info("the name server of sandboxes runs again")
	}
}

// shortTime is how long a client waits before it retries after a shortage.
const shortTime = time.Second

// isIntact reports whether the connection can be used as before after an error: the process has
// refused the request, or descriptors or memory were used up.
func isIntact(err error) bool { return errors.Is(err, errRefused) || errors.Is(err, errShort) }

// behindLocked schedules a full update of the process, repeated until it succeeds.
func (c *Client) behindLocked(err error) {
	if c.state.phase != phaseBehind {
		c.o.Logger.Warn("could not send all names and sockets to the name server of sandboxes; trying again", "error", err.Error())
		c.enterLocked(phaseBehind)
	}
}

// catchUpLocked sends the process everything that it does not know.
func (c *Client) catchUpLocked() {
	c.enterLocked(phaseServing)
	err := c.updateLocked(false)
	switch {
	case isIntact(err):
		c.behindLocked(err)
	case err != nil: // it has died, or hangs: its successor gets everything
		c.killLocked()
	case c.state.phase == phaseServing:
		c.o.Logger.Info("the name server of sandboxes knows everything again")
	}
}

// shortError is the name server's answer when it lacked descriptors or memory.
type shortError string

func (s shortError) Error() string        { return errRefused.Error() + ": " + string(s) }
func (s shortError) Is(target error) bool { return target == errShort || target == errRefused }
