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

// budget is a token bucket. Who has used it up does not read: the kernel then drops the packets that
// do not fit into the socket's buffer, and a dropped question costs the server nothing.
type budget struct {
	burst    float64
	exceeded func() // called once, the first time it is used up; may be nil

	mu     sync.Mutex // guards tokens, last, told
	tokens float64
	last   time.Time
	told   bool
}

func newBudget() *budget {
	return &budget{burst: questionBurst, tokens: questionBurst, last: time.Now()}
}

// take takes a token, or reports that there is none.
func (l *budget) take() bool {
	if weaken.Off(weaken.NameBudget) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tokens = min(l.burst, l.tokens+now.Sub(l.last).Seconds()*questionRate)
	l.last = now
	if l.tokens >= 1 {
		l.tokens--
		return true
	}
	if !l.told && l.exceeded != nil {
		l.exceeded()
	}
	l.told = true
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
