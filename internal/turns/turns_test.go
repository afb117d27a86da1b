package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// workload starts pieces of work of a minute each and records their starts, in order.
type workload struct {
	t     *testing.T
	turns *Turns
	mu    sync.Mutex // guards began
	began []string
}

func (w *workload) start(name string, by Path, urgent bool) {
	turn := w.turns.New()
	leave, err := turn.Ask(by, urgent)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	go func() {
		defer leave()
		if err := turn.Wait(w.t.Context()); err != nil {
			return
		}
		defer turn.Release()
		w.mu.Lock()
		w.began = append(w.began, name)
		w.mu.Unlock()
		wait(w.t, time.Minute)
	}()
	synctest.Wait()
}

func (w *workload) list() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.began)
}

func wait(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// waited returns how long a piece of work of that path waits for its slot.
func (w *workload) waited(by Path) time.Duration {
	w.t.Helper()
	start := time.Now()
	release, err := w.turns.Take(w.t.Context(), by)
	if err != nil {
		w.t.Fatal(err)
	}
	defer release()
	return time.Since(start)
}

// inBubble runs a test with turns of so many slots.
func inBubble(t *testing.T, slots int, test func(t *testing.T, w *workload)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &workload{t: t, turns: New(slots, 1000)}) })
}

// TestOneQueueHoldsANeighbourUp shows that the other tests can see the fault: with one slot and
// one path for all, a neighbour waits for all work before it.
func TestOneQueueHoldsANeighbourUp(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *workload) {
		for i := range 10 {
			w.start(fmt.Sprint(i), nil, true)
		}
		if d := w.waited(nil); d != 10*time.Minute {
			t.Errorf("it waited %s", d)
		}
	})
}

func TestAnotherOwnersWorkStartsAtOnce(t *testing.T) {
	for slots := 2; slots <= 8; slots++ {
		inBubble(t, slots, func(t *testing.T, w *workload) {
			for i := range 50 {
				w.start(fmt.Sprint(i), Path{"attacker", fmt.Sprint(i % 7), fmt.Sprint("image", i)}, true)
			}
			if n := len(w.list()); n != slots-1 {
				t.Errorf("an owner has %d of %d slots", n, slots)
			}
			if d := w.waited(Path{"neighbour", "", "image"}); d != 0 {
				t.Errorf("with %d slots it waited %s", slots, d)
			}
		})
	}
}

func TestAnotherNamespacesWorkStartsAtOnceWithThreeSlots(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *workload) {
		for i := range 50 {
			w.start(fmt.Sprint(i), Path{"cri", "attacker", fmt.Sprint("image", i)}, true)
		}
		if d := w.waited(Path{"cri", "neighbour", "image"}); d != 0 {
			t.Errorf("it waited %s", d)
		}
	})
}

// TestANamespaceWaitsForOnePieceOfWork: with two slots an owner has one, which its namespaces get
// in turn, however many images each of them has.
func TestANamespaceWaitsForOnePieceOfWork(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *workload) {
		for i := range 50 {
			w.start(fmt.Sprint(i), Path{"cri", "attacker", fmt.Sprint("image", i)}, true)
		}
		for range 5 {
			if d := w.waited(Path{"cri", "neighbour", "image"}); d > time.Minute {
				t.Errorf("it waited %s", d)
			}
		}
	})
}

func TestTurnsAreByOwnerThenNamespaceThenImage(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *workload) {
		w.start("a1-i-first", Path{"a", "1", "i"}, true)
		w.start("a1-i", Path{"a", "1", "i"}, true)
		w.start("a1-i2", Path{"a", "1", "i"}, true)
		w.start("a1-j", Path{"a", "1", "j"}, true)
		w.start("a2-i", Path{"a", "2", "i"}, true)
		w.start("b-i", Path{"b", "", "i"}, true)
		w.start("b-i2", Path{"b", "", "i"}, true)
		wait(t, 10*time.Minute)
		if got, want := w.list(), []string{"a1-i-first", "b-i", "a2-i", "b-i2", "a1-j", "a1-i", "a1-i2"}; !slices.Equal(got, want) {
			t.Errorf("the order is %v, want %v", got, want)
		}
	})
}

func TestUrgentWorkComesFirst(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *workload) {
		w.start("first", Path{"b"}, false)
		w.start("warm-a", Path{"a"}, false)
		w.start("start-b", Path{"b"}, true)
		w.start("start-b2", Path{"b"}, true)
		wait(t, 10*time.Minute)
		if got, want := w.list(), []string{"first", "start-b", "start-b2", "warm-a"}; !slices.Equal(got, want) {
			t.Errorf("the order is %v, want %v", got, want)
		}
	})
}

// TestAnUrgentRequestMakesItsWorkUrgent: the turn is that of the request which comes first, and
// the others need none of their own.
func TestAnUrgentRequestMakesItsWorkUrgent(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *workload) {
		w.start("first", Path{"a"}, false)
		w.start("second", Path{"b"}, false)
		shared := w.turns.New()
		leave, err := shared.Ask(Path{"a"}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		again, err := shared.Ask(Path{"c"}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer again()
		start := time.Now()
		if err := shared.Wait(t.Context()); err != nil || time.Since(start) != time.Minute {
			t.Errorf("it waited %s, %v", time.Since(start), err)
		}
		if _, waiting := w.turns.Usage(); waiting != 1 {
			t.Errorf("%d requests wait", waiting)
		}
		if _, err := shared.Ask(Path{"d"}, true); err != nil {
			t.Error(err)
		}
		shared.Release()
		shared.Release()
	})
}

func TestARequestThatLeavesHasNoTurn(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *workload) {
		w.start("first", Path{"a"}, true)
		gone := w.turns.New()
		leave, err := gone.Ask(Path{"a"}, true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("given up")
		cancel(cause)
		if _, err := w.turns.Take(ctx, Path{"b"}); !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
		leave()
		leave()
		if d := w.waited(Path{"c"}); d != time.Minute {
			t.Errorf("it waited %s", d)
		}
		select {
		case <-gone.Started():
			t.Error("work that nobody wants was started")
		default:
		}
		if running, waiting := w.turns.Usage(); running != 0 || waiting != 0 || len(w.turns.groups) != 0 {
			t.Errorf("%d run, %d wait, of groups %v", running, waiting, w.turns.groups)
		}
	})
}

// TestWhoWaitsIsBounded: urgent requests and others each, those of a group within the bound of the
// outer one, and never one that starts at once.
func TestWhoWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &workload{t: t, turns: New(2, 8)}
		refused := func(by Path, urgent bool) {
			t.Helper()
			if _, err := w.turns.New().Ask(by, urgent); !errors.Is(err, ErrFull) {
				t.Errorf("%v: error %v", by, err)
			}
		}
		w.start("first", Path{"a"}, false)
		for i := range 4 {
			w.start("warm", Path{"a", "1", fmt.Sprint(i / 2)}, false)
		}
		refused(Path{"a", "1", "2"}, false)
		w.start("warm", Path{"a", "2", "0"}, false)
		w.start("warm", Path{"a", "2", "0"}, false)
		refused(Path{"a", "2", "0"}, false)
		w.start("warm", Path{"a", "3", "0"}, false)
		w.start("warm", Path{"a", "4", "0"}, false)
		refused(Path{"a", "5"}, false)
		w.start("urgent", Path{"a", "1", "0"}, true)
		w.start("other", Path{"b"}, false)
		if running, waiting := w.turns.Usage(); running != 2 || waiting != 9 {
			t.Errorf("%d run, %d wait", running, waiting)
		}
	})
	if _, err := New(1, 0).New().Ask(Path{"a"}, true); err != nil {
		t.Errorf("what starts at once: %v", err)
	}
}

// TestPathsDoNotMeet: a name cannot look like the names of another path.
func TestPathsDoNotMeet(t *testing.T) {
	seen := map[string]Path{}
	for _, p := range []Path{{"a", "b"}, {"a\"\"b"}, {"a\x00b"}, {"ab"}, {"", "ab"}, {"a", "b", ""}, {"ab", ""}} {
		all := keys(p)
		last := all[len(all)-1]
		if other, ok := seen[last]; ok {
			t.Errorf("%q is as %q", p, other)
		}
		seen[last] = p
	}
}
