package session

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Phase is how a session is.
type Phase string

// The phases.
const (
	Down Phase = "down" // none, and another one is tried
	Up   Phase = "up"
)

// missed is how many heartbeats a manager waits for before it gives the node up.
const missed = 3

// state is the state of the session.
type state struct {
	mu       sync.Mutex // guards phase, manager, err, answers, lastBeat, period
	phase    Phase
	manager  string
	err      error
	answers  bool
	lastBeat time.Time     // the time of the last answered heartbeat, or of the start
	period   time.Duration // of heartbeats
}

// set begins a phase. A manager that refuses the node answers it.
func (s *state) set(p Phase, manager string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.manager, s.err, s.answers = p, manager, err, status.Code(err) == codes.PermissionDenied
}

// assigned records that a manager has sent assignments.
func (s *state) assigned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = true
}

// beat says that a heartbeat was answered, and when the next one is due.
func (s *state) beat(now time.Time, period time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastBeat, s.period = now, period
}

// Contact reports whether a manager answers: it has sent assignments in this session, or refuses
// the node. Otherwise, without a change, the managers give the node up at cutOff, or have done so.
func (c *Client) Contact() (answers bool, cutOff time.Time) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.answers, c.state.lastBeat.Add(missed * c.state.period)
}

// State returns the phase of the session, its manager, and the error if there is none.
func (c *Client) State() (p Phase, manager string, err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.phase == "" {
		return Down, "", nil
	}
	return c.state.phase, c.state.manager, c.state.err
}
