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

// ErrCrash is the error of every call in an engine that died at a stage.
var ErrCrash = errors.New("the agent has died")

// Crash makes a node's engine die at a stage, as if its process had died: nothing is undone, and
// nothing can be read or written any more. It records the stages that are passed, so that a test
// need not know their names.
type Crash struct {
	mu     sync.Mutex // guards at, hit, passed
	at     string
	hit    chan struct{} // closed when the engine dies
	passed []string
}

// Crashes returns a Crash that controls the engines which n starts from now on.
func (n *Node) Crashes() *Crash {
	c := &Crash{hit: make(chan struct{})}
	n.Options.FailPoint = c.point // faces have further stages
	n.Options.Store = mortalStore{n.Options.Store, c}
	n.crash = c
	return c
}

// At makes the engine die the next time it reaches a stage. The engine that is started after that
// does not die; neither does any with "".
func (c *Crash) At(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.hit, c.passed = stage, make(chan struct{}), nil
}

// Hit returns a channel that is closed when the engine dies.
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

// Passed returns the stages passed since At was called, each once, in order.
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

// mortalStore is a store that fails all calls of a dead engine.
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

// Life is a face over a node, for CrashMatrix.
type Life struct {
	Node  *Node
	Crash *Crash // of Node
	// Call makes the client's call, which ends when ctx does. After a crash its error is ignored.
	Call func(ctx context.Context) error
	// Restart ends the face and the engine, and starts new ones.
	Restart func()
	// Again makes the same call again. It must succeed or return the truth.
	Again func() error
	// Clear makes the client remove all that it has created.
	Clear func() error
	// Beside reports whether a stage is of another goroutine, which passes it during some calls only: the agent does not die
	// there. May be nil.
	Beside func(stage string) bool
}

// CrashMatrix lets the agent die after each stage that a call passes, and starts it again. Then the
// records and the node must agree, the client's repeated call must succeed, and nothing may be left
// after the client has removed its objects. The list of stages comes from a call that completes.
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
		if l.Beside != nil {
			stages = slices.DeleteFunc(stages, l.Beside)
		}
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

// stagePatience is how long a stage may take if the call does not wait for it.
const stagePatience = time.Minute

// dies makes the call and lets the agent die at a stage of it.
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
		cancel() // callers that wait die too
		err = <-done
	case err = <-done:
		select {
		case <-hit:
		case <-ctx.Done():
			t.Fatalf("the stage was never reached: %v", err)
		}
	}
	t.Logf("the call ended with %v", err)
	l.Node.Stop() // the old face's calls fail until the next engine starts
}

// clear removes everything and checks that nothing is left.
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
