package names

import (
	"context"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/weaken"
)

// The budget of one sandbox. A busy resolver without a cache asks some hundred questions per second,
// and a program that starts asks them in bursts.
const (
	questionRate  = 2000 // questions and connections per second
	questionBurst = 4000
	questionPause = 50 * time.Millisecond // how long reading stops when the budget is used up
)

// budget is a token bucket. While it is empty, the sandbox's socket is not read: the kernel then
// drops the packets that do not fit into the socket's buffer, and a dropped question costs the
// server nothing.
type budget struct {
	burst    float64
	exceeded func() // called once, the first time it is used up; may be nil
	pool     *pool

	mu       sync.Mutex // guards own, share, reported
	own      bucket
	share    bucket // of the pool
	reported bool   // exceeded was called
}

func newBudget(p *pool) *budget {
	now := time.Now()
	return &budget{burst: questionBurst, pool: p, own: bucket{questionBurst, now}, share: bucket{poolRate, now}}
}

// take takes a token, or reports that there is none.
func (l *budget) take() bool {
	if weaken.Off(weaken.NameBudget) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.own.fill(now, questionRate, l.burst); l.own.tokens >= 1 {
		return l.pool.take(&l.share, now) && l.own.take()
	}
	if !l.reported && l.exceeded != nil {
		l.exceeded()
	}
	l.reported = true
	return false
}

// wait takes a token as soon as there is one. It returns false when the context has ended.
func (l *budget) wait(ctx context.Context) bool {
	for !l.take() {
		pause := time.NewTimer(questionPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return false
		}
	}
	return true
}
