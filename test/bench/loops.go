package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/test/bench/machine"
)

// The parameters of the step loops.
const (
	loops      = 200
	loopsBound = 1.0 // percent of a core, between the restarts
	// slowest is the number of restarts after which the delay is the longest one, a minute.
	slowest  = 10
	watched  = 90 * time.Second
	loopTime = 10 * time.Minute
)

// loops measures the CPU time of our agent while many containers wait for their restarts: in all, and in the seconds
// without a restart.
func (b *bench) loops(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loopTime)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.server.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := longshorev1.NewContainersClient(conn)
	var restarts atomic.Int64
	events, err := longshorev1.NewNodeClient(conn).Events(ctx, &longshorev1.EventsRequest{Follow: true, Kinds: []string{"container.started"}})
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := events.Recv(); err != nil {
				return // the step has ended, or fails by itself
			}
			restarts.Add(1)
		}
	}()
	var names []string
	for range loops {
		name, err := created(client.Create(ctx, &longshorev1.CreateRequest{
			Image: b.image, Pull: "missing", Command: []string{"/bin/sh", "-c", "exit 1"}, Network: "none", Restart: "always", Start: true,
		}))
		if err != nil {
			return fmt.Errorf("a container that fails: %w", err)
		}
		names = append(names, name)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	next := func() error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			return nil
		}
	}
	for restarts.Load() < loops*(slowest+1) {
		if err := next(); err != nil {
			return err
		}
	}
	var all, quiet, quietCPU time.Duration
	seen := restarts.Load()
	used, t := machine.ProgramCPU("longshore"), time.Now()
	for first, firstUsed, began := seen, used, t; ; {
		if err := next(); err != nil {
			return err
		}
		nowUsed, now, count := machine.ProgramCPU("longshore"), time.Now(), restarts.Load()
		if count == seen {
			quiet += now.Sub(t)
			quietCPU += nowUsed - used
		}
		used, t, seen = nowUsed, now, count
		if all = t.Sub(began); all >= watched {
			b.value("", "agent beside loops", 100*float64(used-firstUsed)/float64(all), "%% of a core, with %d crash loops and %d restarts in %v", loops, seen-first, all.Round(time.Second))
			break
		}
	}
	b.value("", "  between the restarts", 100*float64(quietCPU)/float64(max(quiet, 1)), "%% of a core, in %v without one; at most %.0f", quiet.Round(time.Second), loopsBound)
	for _, name := range names {
		if _, err := client.Remove(ctx, &longshorev1.RemoveRequest{Name: name, Force: true}); err != nil {
			return err
		}
	}
	return nil
}
