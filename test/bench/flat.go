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

// flat takes the start of pods beside many idle ones, which should cost what it
// costs beside none.
func (b *bench) flat(ctx context.Context) error {
	alone, withNone, err := b.starts(ctx)
	if err != nil {
		return err
	}
	b.row("", "pod start beside none", alone)
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
	beside, stages, err := b.starts(ctx)
	if err != nil {
		return err
	}
	printStages(stages, withNone)
	b.row("", fmt.Sprintf("pod start beside %d", len(pods)), beside)
	b.value(flatness, "  ratio", float64(middle(beside))/float64(middle(alone)), "(p50)")
	return b.each(ctx, len(pods), func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) })
}

// starts takes what the starts of pods take, each gone before the next, and what
// our agent says of them.
func (b *bench) starts(ctx context.Context) (took []time.Duration, _ []stage, err error) {
	before, err := b.stages(ctx)
	if err != nil {
		return nil, nil, err
	}
	for range b.pods {
		p, err := b.cycle(ctx, func() {})
		if err != nil {
			return nil, nil, err
		}
		took = append(took, p.total())
	}
	after, err := b.stages(ctx)
	return took, since(before, after), err
}

// idle takes what our agent uses while nothing happens.
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
