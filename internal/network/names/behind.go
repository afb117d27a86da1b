package names

import (
	"errors"
	"time"
)

// shortTime is how long a client waits before it retries after a shortage.
const shortTime = time.Second

// isIntact reports whether the connection can be used as before after an error: the process has
// refused the request, or descriptors or memory were used up.
func isIntact(err error) bool { return errors.Is(err, errRefused) || errors.Is(err, errShort) }

// behindLocked schedules a full update of the process, repeated until it succeeds.
func (c *Client) behindLocked(err error) {
	if !c.behind {
		c.o.Logger.Warn("the name server of sandboxes could not be told something; trying again", "error", err.Error())
	}
	c.behind = true
	c.retryLocked()
}

// catchUpLocked tells the process everything that it does not know. It reports false when the
// shortage lasts.
func (c *Client) catchUpLocked() bool {
	c.behind = false
	err := c.tellLocked(false)
	switch {
	case isIntact(err):
		c.behindLocked(err)
	case err != nil: // it has died, or hangs: its successor gets everything
		c.killLocked()
		return false
	}
	if !c.behind {
		c.o.Logger.Info("the name server of sandboxes knows everything again")
	}
	return !c.behind
}

// shortError is the name server's answer when it lacked descriptors or memory.
type shortError string

func (s shortError) Error() string        { return errRefused.Error() + ": " + string(s) }
func (s shortError) Is(target error) bool { return target == errShort || target == errRefused }
