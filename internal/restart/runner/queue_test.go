package runner_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore/longshore/internal/restart/runner"
)

// calls has the starts of a queue, in virtual time. Each lasts as long as its key's entry in long says.
type calls struct {
	long map[string]time.Duration
	zero time.Time

	mu   sync.Mutex // guards all, now, most
	all  []string   // KEY at TIME since the beginning
	now  map[string]int
	most int // calls that ran at once
}

// queued calls test with a queue that runs.
func queued(t *testing.T, parallel int, long map[string]time.Duration, test func(*runner.Queue[string], *calls)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{long: long, zero: time.Now(), now: map[string]int{}}
		q := runner.NewQueue(parallel, func(_ context.Context, key string) {
			c.begin(t, key)
			pass(c.long[key])
			c.end(key)
		})
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { q.Run(ctx) })
		synctest.Wait() // Run waits for the first entry
		test(q, c)
		stop()
		work.Wait()
		if len(c.now) > 0 {
			t.Errorf("Run has returned, and %v are being started", c.now)
		}
	})
}

func (c *calls) begin(t *testing.T, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf("%s at %v", key, time.Since(c.zero)))
	if c.now[key]++; c.now[key] > 1 {
		t.Errorf("%s is started twice at once", key)
	}
	c.most = max(c.most, len(c.now))
}

func (c *calls) end(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.now, key)
}

// want checks the starts until now.
func (c *calls) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.all, want) {
		t.Errorf("started %q, want %q", c.all, want)
	}
}

func TestTheEarliestIsStartedFirst(t *testing.T) {
	queued(t, 4, nil, func(q *runner.Queue[string], c *calls) {
		q.Put("late", c.zero.Add(3*time.Second), time.Time{})
		q.Put("past", c.zero.Add(-time.Hour), time.Time{})
		c.want(t, "past at 0s")
		pass(time.Second)
		q.Put("early", c.zero.Add(2*time.Second), time.Time{})
		pass(time.Hour)
		c.want(t, "past at 0s", "early at 2s", "late at 3s")
	})
}

func TestTheOldestOfOneTimeIsStartedFirst(t *testing.T) {
	queued(t, 1, map[string]time.Duration{"a": time.Second, "b": time.Second, "c": time.Second}, func(q *runner.Queue[string], c *calls) {
		due := c.zero.Add(time.Minute)
		q.Put("b", due, c.zero.Add(2))
		q.Put("c", due, c.zero.Add(3))
		q.Put("a", due, c.zero.Add(1))
		pass(time.Hour)
		c.want(t, "a at 1m0s", "b at 1m1s", "c at 1m2s")
	})
}

func TestAKeyHasOneEntry(t *testing.T) {
	queued(t, 4, nil, func(q *runner.Queue[string], c *calls) {
		q.Put("a", c.zero.Add(time.Second), time.Time{})
		q.Put("b", c.zero.Add(2*time.Second), time.Time{})
		q.Put("gone", c.zero.Add(time.Second), time.Time{})
		q.Put("a", c.zero.Add(3*time.Second), time.Time{})
		q.Put("a", c.zero.Add(4*time.Second), time.Time{})
		q.Drop("gone")
		q.Drop("never was")
		pass(time.Hour)
		c.want(t, "b at 2s", "a at 4s")
	})
}

func TestWhatIsPutDuringAStartIsStartedAfterIt(t *testing.T) {
	queued(t, 4, map[string]time.Duration{"a": 10 * time.Second}, func(q *runner.Queue[string], c *calls) {
		q.Put("a", c.zero, time.Time{})
		pass(time.Second)
		q.Put("a", c.zero.Add(2*time.Second), time.Time{})
		q.Put("b", c.zero.Add(3*time.Second), time.Time{})
		pass(5 * time.Second)
		c.want(t, "a at 0s", "b at 3s")
		pass(10 * time.Second)
		c.want(t, "a at 0s", "b at 3s", "a at 10s")
		q.Put("a", c.zero.Add(17*time.Second), time.Time{})
		q.Drop("a")
		pass(time.Hour)
		c.want(t, "a at 0s", "b at 3s", "a at 10s")
	})
}

func TestStartsAtOnceAreBounded(t *testing.T) {
	long := map[string]time.Duration{}
	for i := range 20 {
		long[fmt.Sprint(i)] = time.Duration(1+i%3) * time.Second
	}
	queued(t, 3, long, func(q *runner.Queue[string], c *calls) {
		for key := range long {
			q.Put(key, c.zero.Add(time.Second), time.Time{})
		}
		pass(time.Hour)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.all) != 20 || c.most != 3 {
			t.Errorf("%d starts, %d at once: %q", len(c.all), c.most, c.all)
		}
	})
}
