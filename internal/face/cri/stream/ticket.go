package stream

import (
	"crypto/rand"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Kind is the purpose of a URL.
type Kind string

// The kinds, which are also the first part of a URL's path.
const (
	KindExec        Kind = "exec"
	KindAttach      Kind = "attach"
	KindPortForward Kind = "portforward"
)

func kinds() []Kind { return []Kind{KindExec, KindAttach, KindPortForward} }

// Request is a client's request to the CRI.
type Request struct {
	Kind Kind
	// ID is the container's, or the sandbox's for KindPortForward.
	ID                         string
	Args                       []string // KindExec
	Stdin, Stdout, Stderr, TTY bool
	Ports                      []uint16 // KindPortForward over websocket channels
}

// tickets are the requests with unused URLs. A URL's token is the only credential of the CRI's
// streaming: it is random, and valid once and for a short time.
type tickets struct {
	life time.Duration
	max  int
	now  func() time.Time

	mu    sync.Mutex // guards open, order
	open  map[string]ticket
	order []string // by age; redeemed ones stay until they are too old
}

type ticket struct {
	req     Request
	expires time.Time
}

func newTickets(life time.Duration, limit int, now func() time.Time) *tickets {
	return &tickets{life: life, max: limit, now: now, open: map[string]ticket{}}
}

// issue keeps a request and returns the token for it. ResourceExhausted.
func (t *tickets) issue(req Request) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.expire(now)
	if len(t.open) >= t.max {
		return "", fmt.Errorf("%s: %d streams wait for their client: %w", req.Kind, len(t.open), errdefs.ErrResourceExhausted)
	}
	token := rand.Text()
	t.open[token] = ticket{req, now.Add(t.life)}
	t.order = append(t.order, token)
	return token, nil
}

// redeem returns a token's request and forgets it.
func (t *tickets) redeem(token string) (Request, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(t.now())
	k, ok := t.open[token]
	delete(t.open, token)
	return k.req, ok
}

// expire drops expired tokens, and leading tokens that were redeemed. Preconditions: mu is held.
func (t *tickets) expire(now time.Time) {
	n := 0
	for _, token := range t.order {
		k, ok := t.open[token]
		if ok && now.Before(k.expires) {
			break
		}
		delete(t.open, token)
		n++
	}
	t.order = append(t.order[:0], t.order[n:]...)
}

func stack() string { return string(debug.Stack()) }
