package logs

import (
	"context"
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// Whole returns sinks that together contain the whole output once: one with both streams, or one
// for each. There may be none.
func Whole(sinks []core.Sink) []core.Sink {
	for _, s := range sinks {
		if s.Stdout && s.Stderr {
			return []core.Sink{s}
		}
	}
	var list []core.Sink
	var out, err bool
	for _, s := range sinks {
		if (s.Stdout && !out) || (s.Stderr && !err) {
			list = append(list, s)
			out, err = out || s.Stdout, err || s.Stderr
		}
	}
	return list
}

// ReadWhole reads the sinks that Whole has returned as Read does: one after the other, or at the
// same time when they are followed. Each entry has its stream. fn is called by one goroutine at a
// time.
func ReadWhole(ctx context.Context, sinks []core.Sink, o Options, fn func(Entry) error) error {
	var mu sync.Mutex // serializes fn
	read := func(ctx context.Context, sink core.Sink) error {
		return Read(ctx, sink, o, func(e Entry) error {
			if e.Stream == "" {
				if e.Stream = "stdout"; !sink.Stdout {
					e.Stream = "stderr"
				}
			}
			mu.Lock()
			defer mu.Unlock()
			return fn(e)
		})
	}
	if !o.Follow || len(sinks) == 1 {
		for _, sink := range sinks {
			if err := read(ctx, sink); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, sink := range sinks {
		wg.Go(func() {
			if err := read(ctx, sink); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
