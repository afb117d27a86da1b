package flight_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/flight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCallersShareOneFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, *int]
		var runs atomic.Int32
		gate := make(chan struct{})
		join := func(ctx context.Context) *flight.Flight[string, *int] {
			return g.Join(ctx, "k", func() *int { return new(int) }, func(ctx context.Context, n *int) error {
				runs.Add(1)
				select {
				case <-gate:
					*n = 42
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := join(ctx), join(t.Context())
		cancel() // the first caller's end does not end the work
		if err := first.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("first caller: %v", err)
		}
		first.Leave()
		close(gate)
		if err := second.Wait(t.Context()); err != nil || *second.State != 42 {
			t.Errorf("second caller: %v, %d", err, *second.State)
		}
		second.Leave()
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestAbandonedFlightStopsBeforeTheNextStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, int]
		var busy atomic.Int32
		letGo := make(chan struct{})
		run := func(ctx context.Context, _ int) error {
			if busy.Add(1) != 1 {
				t.Error("two at the same time")
			}
			<-ctx.Done()
			<-letGo // the cleanup takes time
			busy.Add(-1)
			return ctx.Err()
		}
		zero := func() int { return 0 }
		first := g.Join(t.Context(), "k", zero, run)
		synctest.Wait()
		first.Leave()
		second := g.Join(t.Context(), "k", zero, run)
		if second == first {
			t.Fatal("joined an abandoned flight")
		}
		synctest.Wait()
		close(letGo)
		if err := first.Wait(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("abandoned: %v", err)
		}
		synctest.Wait()
		if busy.Load() != 1 {
			t.Error("the second did not start")
		}
		second.Leave()
		<-second.Done()
	})
}

func TestEndedFlightIsNotJoined(t *testing.T) {
	var g flight.Group[int, int]
	broken := errors.New("broken")
	results := []error{broken, nil}
	for i, want := range results {
		f := g.Join(t.Context(), 1, func() int { return i }, func(_ context.Context, n int) error { return results[n] })
		if err := f.Wait(t.Context()); !errors.Is(err, want) {
			t.Errorf("flight %d: %v, want %v", i, err, want)
		}
		f.Leave()
	}
}

func TestStopEndsAllFlights(t *testing.T) {
	var g flight.Group[int, int]
	var ended atomic.Int32
	var all []*flight.Flight[int, int]
	for key := range 3 {
		all = append(all, g.Join(t.Context(), key, func() int { return key }, func(ctx context.Context, _ int) error {
			<-ctx.Done()
			ended.Add(1)
			return ctx.Err()
		}))
	}
	g.Stop()
	if n := ended.Load(); n != 3 {
		t.Errorf("%d of three have ended", n)
	}
	for _, f := range all {
		if err := f.Wait(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		f.Leave()
	}
	g.Stop() // nothing is left
}

// TestAFlightIsRetiredOnce lets the work end before its callers leave, and the callers leave before it ends.
func TestAFlightIsRetiredOnce(t *testing.T) {
	for name, abandoned := range map[string]bool{"ends first": false, "is abandoned": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var retired atomic.Int32
				g := flight.Group[int, int]{Retire: func(int) { retired.Add(1) }}
				letGo := make(chan struct{})
				join := func() *flight.Flight[int, int] {
					return g.Join(t.Context(), 1, func() int { return 0 }, func(context.Context, int) error {
						<-letGo
						return nil
					})
				}
				first, second := join(), join()
				first.Leave()
				if abandoned {
					second.Leave()
				}
				synctest.Wait()
				if n := retired.Load(); n != 0 {
					t.Errorf("retired %d times while the work goes on", n)
				}
				close(letGo)
				<-second.Done()
				if n := retired.Load(); n != 0 && !abandoned {
					t.Errorf("retired %d times while a caller has not left", n)
				}
				if !abandoned {
					second.Leave()
				}
				if n := retired.Load(); n != 1 {
					t.Errorf("retired %d times, want 1", n)
				}
			})
		})
	}
}
