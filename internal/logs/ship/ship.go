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
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/logs/driver"
)

// Patience is the time that the removal of a container waits for the delivery of its last lines.
const Patience = 10 * time.Second

// downPatience is Patience for a service that does not take lines.
const downPatience = 2 * time.Second

// Runner has a follower for each container with a log driver. It is a core.Policy: it sees creates and removals.
type Runner struct {
	core.Permit
	Dir string // of the positions, and of logs that the node writes for the followers alone
	Log *slog.Logger
	// Default is the driver of containers that name none.
	Default driver.Config
	// Lost is called after lines of a container were lost; n is -1 if nobody knows how many.
	Lost func(c *core.Container, n int, why string)

	mu        sync.Mutex // guards ctx, followers, stopped, broken
	ctx       context.Context
	broken    error // why there is no Dir
	followers map[core.ID]*follower
	stopped   map[core.ID]Trouble // of followers that could not start
	work      sync.WaitGroup
}

var (
	_ core.Policy     = (*Runner)(nil)
	_ core.LogDrivers = (*Runner)(nil)
)

// The limits of a log that the node writes for a follower alone.
const (
	spareBytes = 16 << 20
	spareFiles = 3
)

// Complete implements core.LogDrivers. The follower gets a log of its own if the face has logs of other
// forms, such as FIFOs.
func (r *Runner) Complete(id core.ID, cfg *core.ContainerConfig) error {
	return r.Default.Complete(cfg, readable(cfg.IO.Sinks), core.Sink{
		Format: core.FormatCRI, Stdout: true, Stderr: true, Path: filepath.Join(r.Dir, string(id)+".log"), MaxBytes: spareBytes, MaxFiles: spareFiles,
	})
}

// readable reports whether a follower can read sinks.
func readable(sinks []core.Sink) bool {
	list := logs.Whole(sinks)
	return len(list) == 1 && list[0].Format.Records()
}

// Run follows the logs of all containers that list returns, and of later ones, until ctx ends.
func (r *Runner) Run(ctx context.Context, list func() ([]*core.Container, error)) {
	defer r.work.Wait()
	r.mu.Lock()
	r.broken = r.Open()
	r.ctx, r.followers, r.stopped = ctx, map[core.ID]*follower{}, map[core.ID]Trouble{}
	r.mu.Unlock()
	// A container has its record before its files, so the list has those of all present files.
	entries, _ := os.ReadDir(r.Dir)
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
		r.clean(entries, known)
	}
	<-ctx.Done()
	// A policy's later call must not start a follower that nobody waits for.
	r.mu.Lock()
	r.followers = nil
	r.mu.Unlock()
}

// Open makes the directory. The keeper needs it before the first container.
func (r *Runner) Open() error { return os.MkdirAll(r.Dir, 0o700) }

// clean removes files of containers that are gone.
func (r *Runner) clean(entries []os.DirEntry, known map[string]bool) {
	for _, e := range entries {
		if id, _, _ := strings.Cut(e.Name(), "."); !known[id] {
			_ = os.Remove(filepath.Join(r.Dir, e.Name()))
		}
	}
}

// forget removes the files of a container that is gone.
func (r *Runner) forget(id core.ID) {
	files, _ := filepath.Glob(filepath.Join(r.Dir, string(id)+".*")) // the pattern is valid
	for _, f := range files {
		_ = os.Remove(f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stopped, id)
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
	if r.broken != nil {
		err = r.broken // every position would be lost
	}
	if err != nil {
		r.Log.ErrorContext(ctx, "could not start a log driver; its lines stay in the node's own log", "container", c.ID, "driver", c.Config.LogDriver.Name, "error", err)
		r.stopped[c.ID] = troubleOf(c, time.Now(), err)
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
			if err != nil {
				r.forget(op.Container.ID)
				return
			}
			c := *op.Container // it is complete only now
			r.follow(&c)
		}, nil
	}
	r.mu.Lock()
	f := r.followers[op.Container.ID]
	r.mu.Unlock()
	switch {
	case f == nil && op.Verb == core.VerbRemove:
		return func(err error) {
			if err == nil {
				r.forget(op.Container.ID)
			}
		}, nil
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
