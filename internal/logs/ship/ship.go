// Package ship follows the logs of containers with a log driver and delivers them.
//
// The keeper writes the files; a follower in the agent reads them as logs -f does. A follower stores its position after the
// service has accepted the lines before it, so that the next agent continues there: every line arrives at least once. A
// service that is down or slow holds back only its follower. Start at Runner; follower.go has the work for one container.
package ship

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// Patience is the time that the removal of a container waits for the delivery of its last lines.
const Patience = 10 * time.Second

// downPatience is Patience for a service that does not take lines.
const downPatience = 2 * time.Second

// Runner has a follower for each container with a log driver. It is a core.Policy: it sees creates and removals.
type Runner struct {
	core.Permit
	Dir string // of the positions
	Log *slog.Logger
	// Lost is called after lines of a container were lost; n is -1 if nobody knows how many.
	Lost func(c *core.Container, n int, why string)

	mu        sync.Mutex // guards ctx, followers
	ctx       context.Context
	followers map[core.ID]*follower
	work      sync.WaitGroup
}

var _ core.Policy = (*Runner)(nil)

// Run follows the logs of all containers that list returns, and of later ones, until ctx ends.
func (r *Runner) Run(ctx context.Context, list func() ([]*core.Container, error)) {
	defer r.work.Wait()
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		r.Log.ErrorContext(ctx, "could not make the directory of log positions, so no log driver works", "error", err)
		return
	}
	r.mu.Lock()
	r.ctx, r.followers = ctx, map[core.ID]*follower{}
	r.mu.Unlock()
	all, err := list()
	if err != nil {
		r.Log.ErrorContext(ctx, "could not list containers, so log drivers do not continue", "error", err)
	}
	known := map[string]bool{}
	for _, c := range all {
		known[string(c.ID)] = true
		if c.State != core.ContainerCreating {
			r.follow(c)
		}
	}
	if err == nil {
		r.clean(known)
	}
	<-ctx.Done()
	// A policy's later call must not start a follower that nobody waits for.
	r.mu.Lock()
	r.followers = nil
	r.mu.Unlock()
}

// clean removes positions of containers that are gone.
func (r *Runner) clean(known map[string]bool) {
	entries, _ := os.ReadDir(r.Dir)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if _, live := r.followers[core.ID(id)]; ok && !live && !known[id] {
			_ = os.Remove(filepath.Join(r.Dir, e.Name()))
		}
	}
}

// follow starts a follower for a container with a driver, unless there is one.
func (r *Runner) follow(c *core.Container) {
	if c.Config.LogDriver == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followers == nil || r.followers[c.ID] != nil {
		return
	}
	ctx := r.ctx
	f, err := newFollower(ctx, r, c)
	if err != nil {
		r.Log.ErrorContext(ctx, "could not start a log driver; its lines stay in the node's own log", "container", c.ID, "driver", c.Config.LogDriver.Name, "error", err)
		return
	}
	r.followers[c.ID] = f
	r.work.Go(func() { f.run(ctx) })
}

// Before implements core.Policy. A removal waits for the delivery of the last lines.
func (r *Runner) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	switch {
	case op.Container == nil || op.Container.Config.LogDriver == nil:
		return nil, nil
	case op.Verb == core.VerbCreate:
		return func(err error) {
			if err == nil { // the container is complete only now
				c := *op.Container
				r.follow(&c)
			}
		}, nil
	}
	r.mu.Lock()
	f := r.followers[op.Container.ID]
	r.mu.Unlock()
	switch {
	case f == nil || op.Verb != core.VerbRemove && op.Verb != core.VerbStart:
		return nil, nil
	case op.Verb == core.VerbStart:
		f.started.Store(time.Now().UnixNano())
		return nil, nil
	}
	f.finish(ctx)
	return func(err error) { r.removed(f, err) }, nil
}

// removed forgets a removed container. If the removal has failed, its follower continues.
func (r *Runner) removed(f *follower, err error) {
	r.mu.Lock()
	if r.followers != nil {
		delete(r.followers, f.container.ID)
	}
	r.mu.Unlock()
	f.stop()
	<-f.done
	if err != nil {
		r.follow(f.container)
		return
	}
	f.remove()
}
