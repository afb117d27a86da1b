package fleet

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// The pause after a round of scheduling: changes come in groups. A round takes longer the larger the fleet is, so the
// pause is a multiple of that, and rounds use a fifth of a processor at most, however many changes there are.
const (
	gather     = 20 * time.Millisecond
	rest       = 4 // times the duration of the round
	maxRest    = time.Second
	retryAfter = 100 * time.Millisecond // after a change that was not in the round
)

// Term is a term of this hub as the only scheduler. Aborted if a decision is out of date.
type Term interface {
	Commit(ctx context.Context, writes ...store.Write) error
}

// Run schedules whenever something has changed, until ctx ends. scheduled is called with the duration of
// each round.
func Run(ctx context.Context, b *inventory.Inventory, term Term, moveAfter time.Duration, scheduled func(took time.Duration), log *slog.Logger) error {
	for {
		next, begun := b.NextRound(), time.Now()
		writes, again := Schedule(StateOf(b, moveAfter))
		took := time.Since(begun)
		scheduled(took)
		for group := range slices.Chunk(writes, store.MaxWrites-1) { // the term has one more
			if err := term.Commit(ctx, group...); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				again = time.Now().Add(retryAfter)
				if !errdefs.IsAborted(err) { // the next round has concurrent changes
					log.ErrorContext(ctx, "could not store the next tasks; will try again", "error", err)
					again = time.Now().Add(time.Second)
				}
				break
			}
		}
		if err := wait(ctx, next, again, restOf(took)); err != nil {
			return err
		}
	}
}

// StateOf returns the state of the fleet now.
func StateOf(b *inventory.Inventory, moveAfter time.Duration) State {
	s := State{Now: time.Now(), Secrets: b.Secrets(), Configs: b.Configs(), MoveAfter: moveAfter, NewID: ca.NewID}
	s.Services, s.Nodes, s.Tasks = b.Services(), b.Nodes(), b.Tasks() // after the secrets, so that the service of each exists
	return s
}

// restOf returns the pause after a round that took some time.
func restOf(took time.Duration) time.Duration { return min(max(gather, rest*took), maxRest) }

// wait waits for the next change, or until some time if that is not zero; and for least in any case.
func wait(ctx context.Context, next <-chan struct{}, until time.Time, least time.Duration) error {
	moment := time.NewTimer(least)
	defer moment.Stop()
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-next:
	case <-due:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-moment.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
