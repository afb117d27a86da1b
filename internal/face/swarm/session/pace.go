package session

import (
	"math/rand/v2"
	"time"
)

// How long the node waits before it tries again, which doubles up to the longest; the managers
// register a node at most three times within the window.
const (
	firstBackoff  = 100 * time.Millisecond
	longestWait   = 8 * time.Second
	maxRegistered = 3
	window        = 8*time.Second + 500*time.Millisecond
)

// pace says when to try the next session.
type pace struct {
	backoff    time.Duration
	registered []time.Time // times of the registrations, the latest last
}

// failed makes the pauses longer.
func (p *pace) failed() { p.backoff = min(firstBackoff+2*p.backoff, longestWait) }

// opened says that a session was opened; a new one counts for the managers' limit, one
// that was resumed does not.
func (p *pace) opened(now time.Time, registered bool) {
	p.backoff = 0
	if !registered {
		return
	}
	p.registered = append(p.registered, now)
	if n := len(p.registered); n > maxRegistered {
		p.registered = p.registered[n-maxRegistered:]
	}
}

// wait is the pause before the next try: a part of the backoff at random, so that the nodes of a
// Swarm do not all come at once, and, for a new registration, as long as the managers would refuse
// it.
func (p *pace) wait(now time.Time, registers bool) time.Duration {
	d := time.Duration(rand.Float64() * float64(p.backoff)) //nolint:gosec // it spreads load
	if registers && len(p.registered) == maxRegistered {
		d = max(d, p.registered[0].Add(window).Sub(now))
	}
	return d
}
