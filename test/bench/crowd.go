package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/bench/machine"
)

// crowd starts the burst, measures the node with all of it idle, kills the agent if it is ours, and
// removes the burst.
func (b *bench) crowd(ctx context.Context) error {
	empty := b.memory()
	pods := make([]*pod, b.burst)
	t := time.Now()
	err := b.each(ctx, b.burst, func(ctx context.Context, i int) (err error) {
		pods[i], err = b.up(ctx)
		return err
	})
	if err != nil {
		return err
	}
	wall := time.Since(t)
	for _, p := range pods {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	var each []time.Duration
	for _, p := range pods {
		each = append(each, p.total())
	}
	b.value(podsPerSec, fmt.Sprintf("%d pods, %d workers", b.burst, b.workers), float64(b.burst)/wall.Seconds(), "pods/s")
	b.row("", "  pod start in the burst", each)
	full := b.memory()
	for _, name := range slices.Sorted(maps.Keys(full)) {
		fmt.Printf("%-28s %8d KB empty, %d KB with %d pods\n", "PSS "+name, empty[name]/1024, full[name]/1024, b.burst)
	}
	b.value(memory, "marginal PSS per idle pod", float64(sum(full)-sum(empty))/1024/float64(b.burst), "KB")
	if err := b.lists(ctx); err != nil {
		return err
	}
	if b.server != nil {
		if err := b.recovery(ctx); err != nil {
			return err
		}
	}
	t = time.Now()
	if err := b.each(ctx, b.burst, func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) }); err != nil {
		return err
	}
	b.value("", "teardown of them", float64(b.burst)/time.Since(t).Seconds(), "pods/s")
	return nil
}

// memory is the memory of the server's processes, by program: all on its machine but the pods' own,
// or the named ones. The process in which our agent unpacks images ends some time after a pull,
// independent of pods.
func (b *bench) memory() map[string]int64 {
	if b.server != nil {
		return machine.Memory(machine.But(strings.Join(program, "\x00"), "sleep\x003600", "/proc/self/exe\x00"))
	}
	named := strings.Split(b.pss, ",")
	return machine.Memory(func(name, _ string) bool { return slices.Contains(named, name) })
}

func sum(m map[string]int64) (total int64) {
	for _, v := range m {
		total += v
	}
	return total
}

// recovery takes the time from a SIGKILL to a list that shows every container
// running.
func (b *bench) recovery(ctx context.Context) error {
	var took []time.Duration
	for range 5 {
		t := time.Now()
		if err := b.server.Restart(ctx); err != nil {
			return err
		}
		for {
			r, err := b.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
				State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			}}, grpc.WaitForReady(true))
			if err == nil && len(r.GetContainers()) == b.burst {
				break
			}
			if ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			if time.Since(t) > time.Minute {
				return fmt.Errorf("recovery: %d of %d containers after a minute: %w", len(r.GetContainers()), b.burst, err)
			}
		}
		took = append(took, time.Since(t))
	}
	b.row(recovered, "SIGKILL to a right list", took)
	return nil
}
