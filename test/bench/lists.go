package main

import (
	"context"
	"fmt"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
)

// reading is a call that changes nothing, and how many objects it gave.
type reading struct {
	sample string // "" is none that servers are compared by
	name   string
	call   func() (int, error)
}

// Each reading is repeated, as a kubelet does too: at least so often, and for so long, or the first
// few of a short call would be its median.
const (
	readings    = 20
	readingTime = 300 * time.Millisecond
)

func (b *bench) listContainers(ctx context.Context) func() (int, error) {
	return func() (int, error) {
		r, err := b.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		return len(r.GetContainers()), err
	}
}

func (b *bench) listPodSandbox(ctx context.Context) func() (int, error) {
	return func() (int, error) {
		r, err := b.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return len(r.GetItems()), err
	}
}

// lists reads the lists with the burst's pods.
func (b *bench) lists(ctx context.Context) error {
	calls := []reading{
		{listConts, "ListContainers", b.listContainers(ctx)},
		{"", "ListPodSandbox", b.listPodSandbox(ctx)},
		{listStats, "ListContainerStats", func() (int, error) {
			r, err := b.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return len(r.GetStats()), err
		}},
		{podStats, "ListPodSandboxStats", func() (int, error) {
			r, err := b.client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return len(r.GetStats()), err
		}},
	}
	if b.ours() { // others give none unless told which
		calls = append(calls, reading{"", "ListPodSandboxMetrics", func() (int, error) {
			r, err := b.client.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
			return len(r.GetPodMetrics()), err
		}})
	}
	return b.read(calls, b.burst)
}

// listsOfMany reads the lists with all of pods.
func (b *bench) listsOfMany(ctx context.Context, pods []*pod) error {
	i := 0
	next := func() *pod { i++; return pods[i%len(pods)] }
	return b.read([]reading{
		{manyLists, "ListContainers", b.listContainers(ctx)},
		{manyPods, "ListPodSandbox", b.listPodSandbox(ctx)},
		{manyStatus, "ContainerStatus", func() (int, error) {
			_, err := b.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: next().container})
			return len(pods), err
		}},
		{manySandbox, "PodSandboxStatus", func() (int, error) {
			_, err := b.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: next().sandbox})
			return len(pods), err
		}},
	}, len(pods))
}

func (b *bench) read(calls []reading, want int) error {
	for _, c := range calls {
		var took []time.Duration
		for began := time.Now(); len(took) < readings || time.Since(began) < readingTime; {
			t := time.Now()
			n, err := c.call()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if n < want {
				return fmt.Errorf("%s: %d objects, want %d", c.name, n, want)
			}
			took = append(took, time.Since(t))
		}
		b.row(c.sample, fmt.Sprintf("%s of %d", c.name, want), took)
	}
	return nil
}
