package names

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"
)

// healthTime is the default interval of health checks.
const healthTime = 10 * time.Second

// probe asks the process behind conn at intervals whether it answers, until it has gone, and
// replaces it when it does not.
func (c *Client) probe(conn *net.UnixConn, gone <-chan struct{}) {
	t := time.NewTicker(cmp.Or(c.o.Health, healthTime))
	defer t.Stop()
	for {
		select {
		case <-gone:
			return
		case <-t.C:
		}
		if !c.healthy(conn) {
			return
		}
	}
}

// healthy returns false when the process behind conn is not the one in use any more.
func (c *Client) healthy(conn *net.UnixConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.conn != conn {
		return false
	}
	resp, err := c.callLocked(request{Op: opHello}, nil)
	if errors.Is(err, errShort) {
		return true
	}
	if err == nil {
		if c.o.Unanswered != nil {
			c.o.Unanswered(resp.Unanswered)
		}
		if c.o.Refused != nil {
			c.o.Refused(resp.Refused)
		}
		c.holdAgainLocked()
		c.deaths = 0
		return true
	}
	c.o.Logger.Warn("the name server of sandboxes does not answer; starting another one", "error", err.Error())
	c.killLocked()
	if err := c.restoreLocked(context.Background()); err != nil {
		c.o.Logger.Error("could not start the name server of sandboxes again; it is tried again and again", "error", err.Error())
	}
	return false
}
