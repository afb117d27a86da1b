package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/agent/heap"
	"github.com/longshore/longshore/internal/agent/sockets"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/disk/limits"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/restart/runner"
	"github.com/longshore/longshore/internal/sleep/idle"
)

// serve recovers the engine and then serves until ctx ends or a part fails.
func (n *node) serve(ctx context.Context) error {
	// A client that connects during the recovery waits for it, and need not try again.
	listening, err := n.listen(ctx)
	if err != nil {
		return err
	}
	n.next.at(5)
	defer listening.Close() // after the group, because faces serve on them until they return
	ctx, stop := context.WithCancelCause(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer func() { // after the engine, because the group's work ends only with ctx
		stop(nil)
		_ = group.Wait()
	}()
	if err := n.recover(ctx, group, listening); err != nil {
		return err
	}
	n.next.at(6)
	faces, err := n.openFaces(ctx, false)
	if err != nil {
		return err
	}
	if n.control, err = n.controller(); err != nil {
		return err
	}
	stopEngine := n.runEngine(ctx, group)
	defer stopEngine() // first after an error; below, it stops after the group, because faces that end still end processes
	if n.cfg.Engine.GrantsPolicy != "" {
		listening.Control.Board = n.boardAPI
	}
	group.Go(func() error { return n.control.Serve(ctx, listening.Control) })
	group.Go(func() error { return listening.ServeMetrics(ctx) })
	group.Go(func() error { return servePage(ctx, n, listening.UI) })
	serveFaces(ctx, group, listening, faces)
	group.Go(func() error { return n.tellSystemd(ctx) })
	group.Go(func() error {
		select {
		case <-n.next.wanted:
			stop(handover.ErrNext)
		case <-ctx.Done():
		}
		return nil
	})
	restarts := runner.Runner{All: n.engine.All(), As: n.engine.As, Parallel: n.cfg.Agent.BootParallel, Log: n.log}
	idlers := idle.Runner{All: n.engine.All(), Log: n.log, Every: 3 * time.Second}
	disks := limits.Runner{All: n.engine.All(), Log: n.log, Every: 5 * time.Second}
	for _, tend := range []func(context.Context){n.tendNode, heap.Tend, n.reserves.tend, restarts.Run, idlers.Run, disks.Run, func(ctx context.Context) { countExits(ctx, n) }, func(ctx context.Context) { n.drivers.tend(ctx, n) }} {
		group.Go(func() error {
			tend(ctx)
			return nil
		})
	}
	n.next.ready()
	n.log.InfoContext(ctx, "agent is ready", "version", n.version, "root", n.cfg.Agent.Root, "state", n.cfg.Agent.State, "runtime", n.runtimes.chosen, "took", time.Since(n.started))
	err = group.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	if n.next.path() != "" { // the next agent continues
		stopEngine()
		return err
	}
	stopForShutdown(context.WithoutCancel(ctx), n.log, n.engine.As(core.OwnerCLI), n.engine.As(core.OwnerDocker))
	stopEngine()
	return errors.Join(err, n.leave(context.WithoutCancel(ctx), leavePatience))
}

// recover makes records and node agree, before anybody can call the engine. Faces that serve early
// answer meanwhile that it recovers.
func (n *node) recover(ctx context.Context, group *errgroup.Group, listening *sockets.Sockets) error {
	n.recovered = make(chan struct{})
	early, err := n.openFaces(ctx, true)
	if err != nil {
		return err
	}
	serveFaces(ctx, group, listening, early)
	if err := n.engine.Recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := recoverBoard(ctx, n); err != nil {
		n.log.WarnContext(ctx, "could not send the processes of containers to the board; their handles stay until their last descriptor is closed", "error", err)
	}
	close(n.recovered)
	if err := n.trials.End(ctx); err != nil {
		n.log.WarnContext(ctx, "could not remove the test container of an earlier doctor", "error", err)
	}
	return nil
}

func serveFaces(ctx context.Context, group *errgroup.Group, listening *sockets.Sockets, faces []face.Face) {
	for _, f := range faces {
		group.Go(func() error {
			listening.Serve(ctx, f)
			return nil
		})
	}
}

// tendNode completes the copies of the keeper's descriptors, and then watches the node until ctx ends.
func (n *node) tendNode(ctx context.Context) {
	n.keeper.AskCopies()
	n.tend(ctx)
}

// runEngine runs the engine in a group until stop is called, also after ctx has ended: ends during
// the shutdown, such as those of clients' sessions, are still recorded.
func (n *node) runEngine(ctx context.Context, group *errgroup.Group) (stop func()) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = n.engine.Run(own)
	}()
	group.Go(func() error {
		select {
		case <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	return func() {
		cancel()
		<-ended
	}
}
