package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// ErrCrash is what everything answers in an engine that died at a stage.
var ErrCrash = errors.New("the agent has died")

// Crash has a node's engine die at a stage, as its process would: nothing is
// undone, and nothing can be read or written any more. It notes the stages that
// are passed, so that a test need not know their names.
type Crash struct {
	mu     sync.Mutex // guards at, hit, passed
	at     string
	hit    chan struct{} // closed when the engine dies
	passed []string
}

// Crashes lets the engines that n starts from now on die where the Crash says.
func (n *Node) Crashes() *Crash {
	c := &Crash{hit: make(chan struct{})}
	n.Options.FailPoint = c.point
	n.Options.Store = mortalStore{n.Options.Store, c}
	n.crash = c
	return c
}

// At has the engine die at a stage, the next time it gets there. The engine that starts
// after that lives, as with "".
func (c *Crash) At(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.hit, c.passed = stage, make(chan struct{}), nil
}

// Hit is closed when the engine dies.
func (c *Crash) Hit() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hit
}

// Dead reports whether the engine has died.
func (c *Crash) Dead() bool {
	select {
	case <-c.Hit():
		return true
	default:
		return false
	}
}

// Passed are the stages passed since At was called, each once, in their order.
func (c *Crash) Passed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.passed)
}

func (c *Crash) point(stage string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.passed, stage) {
		c.passed = append(c.passed, stage)
	}
	select {
	case <-c.hit:
		return ErrCrash
	default:
	}
	if stage != c.at {
		return nil
	}
	close(c.hit)
	return ErrCrash
}

// mortalStore is a store that the dead cannot reach.
type mortalStore struct {
	core.Store
	crash *Crash
}

func (s mortalStore) View(fn func(core.Tx) error) error {
	if s.crash.Dead() {
		return ErrCrash
	}
	return s.Store.View(fn)
}

func (s mortalStore) Update(fn func(core.Tx) error) error {
	if s.crash.Dead() {
		return ErrCrash
	}
	return s.Store.Update(fn)
}

// Life is a face over a node, as CrashMatrix drives it.
type Life struct {
	Node  *Node
	Crash *Crash // of Node
	// Call is the client's call, which ends when ctx does; after a death its error
	// does not matter.
	Call func(ctx context.Context) error
	// Restart is the end of the face and the engine, and the next ones' start.
	Restart func()
	// Again is the same call once more, which must succeed or tell the truth.
	Again func() error
	// Clear has the client take away all that it has made.
	Clear func() error
}

// CrashMatrix lets the agent die after each stage that a call passes, and starts
// it again: then the node and the records agree, the client's repeated call
// succeeds, and when the client has removed what it made nothing is left. Which
// stages there are is read from a call that goes through.
func CrashMatrix(t *testing.T, begin func(t *testing.T) Life) {
	t.Helper()
	var stages []string
	t.Run("alive", func(t *testing.T) {
		l := begin(t)
		l.Crash.At("")
		if err := l.Call(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.Node.Settle()
		stages = l.Crash.Passed()
		l.clear(t)
	})
	if len(stages) == 0 {
		t.Fatal("the call passes no stage")
	}
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			l := begin(t)
			l.dies(t, stage)
			l.Restart()
			l.Node.Clean()
			if err := l.Again(); err != nil {
				t.Errorf("the repeated call: %v", err)
			}
			l.clear(t)
		})
	}
}

// stagePatience is how long a stage may take that the call does not wait for.
const stagePatience = time.Minute

// dies makes the call and has the agent die at a stage of it.
func (l Life) dies(t *testing.T, stage string) {
	t.Helper()
	l.Crash.At(stage)
	hit := l.Crash.Hit()
	ctx, cancel := context.WithTimeout(t.Context(), stagePatience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.Call(ctx) }()
	var err error
	select {
	case <-hit:
		cancel() // whoever waits dies too
		err = <-done
	case err = <-done:
		select {
		case <-hit:
		case <-ctx.Done():
			t.Fatalf("the stage was never reached: %v", err)
		}
	}
	t.Logf("the call ended with %v", err)
	l.Node.Stop() // what its face still does finds nothing until the next engine starts
}

// clear removes all and finds nothing left.
func (l Life) clear(t *testing.T) {
	t.Helper()
	l.Node.Clean()
	if err := l.Clear(); err != nil {
		t.Errorf("remove what is there: %v", err)
	}
	l.Node.Settle()
	l.Node.Clean()
	if left := l.Node.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
