package names

import (
	"sync"
	"time"
)

// The bounds of the whole process. Each sandbox has a share of its own, and all share the rest. So any
// number of sandboxes that ask without pause cost a bounded part of a CPU, and a quiet one beside them
// is answered.
const (
	poolRate     = 20_000 // questions and connections per second: once in equal shares, and once in common
	poolBurst    = 20_000
	poolForwards = 1024 // forwarded questions that wait for an answer, beside those that each sandbox has
	ownForwards  = 8    // forwarded questions that each sandbox has for itself
)

// bucket is a token bucket.
type bucket struct {
	tokens float64
	last   time.Time
}

// fill adds the tokens of the time since the last call.
func (b *bucket) fill(now time.Time, rate, burst float64) {
	b.tokens = min(burst, b.tokens+now.Sub(b.last).Seconds()*rate)
	b.last = now
}

// take takes a token, or reports that there is none.
func (b *bucket) take() bool {
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// pool is the shared budget of a process's sandboxes. A nil pool has no bounds.
type pool struct {
	mu       sync.Mutex // guards common, members, forwards
	common   bucket
	members  int
	forwards int
}

func newPool() *pool { return &pool{common: bucket{poolBurst, time.Now()}} }

// join adds a sandbox.
func (p *pool) join() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members++
}

// leave removes a sandbox.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members--
}

// take takes a token of a sandbox's own share, or else a common one.
func (p *pool) take(share *bucket, now time.Time) bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	rate := float64(poolRate) / float64(max(1, p.members))
	share.fill(now, rate, max(1, rate))
	p.common.fill(now, poolRate, poolBurst)
	return share.take() || p.common.take()
}

// forward reports whether one more question may be forwarded for a sandbox that has others under way.
// done ends it.
func (p *pool) forward(others int) (done func(), ok bool) {
	if p == nil || others < ownForwards {
		return func() {}, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forwards >= poolForwards {
		return nil, false
	}
	p.forwards++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forwards--
	}, true
}
