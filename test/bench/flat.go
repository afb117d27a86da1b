package main

import (
	"context"
	"fmt"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
)

// manyTimes is how many bursts are many.
const manyTimes = 5

// many reads lists where many pods are. It leaves them: they end with the machine.
func (b *bench) many(ctx context.Context) error {
	pods, err := b.crowded(ctx)
	if err != nil {
		return err
	}
	if err := b.listsOfMany(ctx, pods); err != nil || b.server != nil {
		return err
	}
	return b.each(ctx, len(pods), func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) })
}

func (b *bench) crowded(ctx context.Context) ([]*pod, error) {
	pods := make([]*pod, manyTimes*b.burst)
	return pods, b.each(ctx, len(pods), func(ctx context.Context, i int) (err error) {
		pods[i], err = b.up(ctx)
		return err
	})
}

// flat measures the start of pods beside many idle ones, which should cost as much as beside none.
func (b *bench) flat(ctx context.Context) error {
	alone, err := b.starts(ctx)
	if err != nil {
		return err
	}
	b.row("", "pod start beside none", alone.took)
	b.row("", "  right after a removal", alone.after)
	pods, err := b.crowded(ctx)
	if err != nil {
		return err
	}
	if b.ours() {
		if err := b.idle(ctx, len(pods)); err != nil {
			return err
		}
	}
	if err := b.listsOfMany(ctx, pods); err != nil {
		return err
	}
	beside, err := b.starts(ctx)
	if err != nil {
		return err
	}
	printStages(beside.stages, alone.stages)
	b.row("", fmt.Sprintf("pod start beside %d", len(pods)), beside.took)
	b.value(flatness, "  ratio", float64(middle(beside.took))/float64(middle(alone.took)), "(p50)")
	b.row("", "  right after a removal", beside.after)
	b.value(flatAfter, "  ratio", float64(middle(beside.after))/float64(middle(alone.after)), "(p50)")
	return b.each(ctx, len(pods), func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) })
}

// started has the durations of starts, and our agent's stages of them.
type started struct {
	took   []time.Duration
	after  []time.Duration // each right after another pod's removal
	stages []stage         // of took
}

// starts starts pods one after the other. The kernel continues to remove a pod for some
// milliseconds after the answer, and longer beside many; starts in that time are separate.
func (b *bench) starts(ctx context.Context) (s started, err error) {
	before, err := b.stages(ctx)
	if err != nil {
		return s, err
	}
	pods := make([]*pod, b.pods)
	for i := range pods {
		if pods[i], err = b.up(ctx); err != nil {
			return s, err
		}
		s.took = append(s.took, pods[i].total())
	}
	now, err := b.stages(ctx)
	if err != nil {
		return s, err
	}
	s.stages = since(before, now)
	for _, p := range pods {
		if err := b.down(ctx, p); err != nil {
			return s, err
		}
	}
	for range b.pods {
		p, err := b.cycle(ctx, func() {})
		if err != nil {
			return s, err
		}
		s.after = append(s.after, p.total())
	}
	return s, nil
}

// idle measures our agent's CPU time while nothing happens.
func (b *bench) idle(ctx context.Context, pods int) error {
	used, t := machine.ProgramCPU("longshore"), time.Now()
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	b.value(idleCPU, "idle agent", 100*float64(machine.ProgramCPU("longshore")-used)/float64(time.Since(t)), "%% of a core, with %d pods", pods)
	return nil
}
