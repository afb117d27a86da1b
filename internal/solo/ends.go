package solo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/solo/translate"
)

// sessions counts the clients attached to each container.
type sessions struct {
	mu sync.Mutex // guards n
	n  map[core.ID]int
	// orphans are running containers with held output and without a reader.
	orphans chan core.ID
}

// maxOrphans bounds the containers that wait in orphans. The next agent finds the others.
const maxOrphans = 1024

// orphan reports that nobody reads a container's held output any more.
func (s *sessions) orphan(id core.ID) {
	select {
	case s.orphans <- id:
	default:
	}
}

// drain reads and drops the held output of containers without a client, until ctx ends, because a
// full pipe would stop their programs.
func (s *Service) drain(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-s.sessions.orphans:
			wg.Go(func() { s.discard(ctx, id) })
		}
	}
}

// The pause between two tries to read held output doubles from the first to the longest.
const (
	firstRetry   = 50 * time.Millisecond
	longestRetry = 5 * time.Second
)

// discard reads and drops one container's output. It tries again while the keeper has not yet noticed that the client
// has left.
func (s *Service) discard(ctx context.Context, id core.ID) {
	ref := core.Ref{Container: id}
	for pause := firstRetry; !s.sessions.busy(id); pause = min(2*pause, longestRetry) {
		streams, err := s.own.Streams(ctx, ref, core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true})
		if err == nil {
			at := attach.Session{Engine: s.own, Ref: ref, Streams: streams}
			_, _ = at.Run(ctx)
		}
		if c, err := s.own.Container(ctx, id); err != nil || c.State == core.ContainerExited {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (s *sessions) enter(id core.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[core.ID]int{}
	}
	s.n[id]++
}

func (s *sessions) leave(id core.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n[id]--; s.n[id] <= 0 {
		delete(s.n, id)
	}
}

func (s *sessions) busy(id core.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[id] > 0
}

// Enter reports that a client is attached to a container. While it is, an ended container is not settled. Leave ends it.
func (s *Service) Enter(id core.ID) { s.sessions.enter(id) }

// Orphan reports that nobody reads a container's held output any more. Then it is read and dropped.
func (s *Service) Orphan(id core.ID) { s.sessions.orphan(id) }

// Leave ends a session, and settles the container if it has ended meanwhile.
func (s *Service) Leave(ctx context.Context, id core.ID) {
	s.sessions.leave(id)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	s.settle(clean, id)
}

// sweep settles our containers when they end, until ctx ends.
func (s *Service) sweep(ctx context.Context) {
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerUpdated, core.EventContainerRemoved},
		List: func(ctx context.Context) error {
			list, err := s.own.Containers(ctx, core.Filter{})
			for _, c := range list {
				s.settle(ctx, c.ID)
			}
			return err
		},
		Event: func(ctx context.Context, e core.Event) error {
			switch e.Kind {
			case core.EventContainerExited:
				s.settle(ctx, e.Container)
				return nil
			case core.EventContainerRemoved:
				widowed(ctx, s, e)
				return nil
			}
			// A start that has failed may have kept the holder of its namespaces from being settled.
			if sb, err := s.own.Sandbox(ctx, e.Sandbox); err == nil {
				s.settleHolders(ctx, &sb)
			}
			return nil
		},
		Failed: func(err error) {
			s.o.Logger.ErrorContext(ctx, "could not follow the event log, so ended containers keep their sandboxes; will try again", "error", err)
		},
	}
	_ = w.Run(ctx, s.own) // Failed gets every error
}

// widowed removes the sandbox and the log of a container that another owner's call has removed alone, such as longshore rm --force. It
// does nothing after a removal of ours, which removes them too. Only a service with Rest knows which containers are complete.
func widowed(ctx context.Context, s *Service, e core.Event) {
	sb, err := s.own.Sandbox(ctx, e.Sandbox)
	if err != nil || !s.o.Rest || string(sb.Data) == unfinished {
		return // a create undoes its own stages
	}
	if list, err := s.own.Containers(ctx, core.Filter{Sandbox: sb.ID}); err != nil || len(list) > 0 {
		return
	}
	a := core.StopRequest{Owner: s.o.Owner, Call: "longshore agent: the container was removed", At: e.At}
	err = s.own.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: a})
	if err == nil {
		err = removeLogFiles(filepath.Join(s.o.LogDir, string(sb.ID)+".log"))
	}
	if err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
		s.o.Logger.WarnContext(ctx, "could not remove the sandbox of a removed container; the agent's next start will retry", "sandbox", string(sb.ID), "error", err)
	}
	if s.o.Removed != nil {
		s.o.Removed(e.Container)
	}
}

// settle releases the resources of an ended container of ours: the whole container if its user
// asked for its removal, otherwise its namespaces, address and ports. While a client is attached, the container itself stays, with
// the log that the client reads: Leave settles it once more.
func (s *Service) settle(ctx context.Context, id core.ID) {
	// A restart may hold the lock as long as a program takes to end. The sweep must not wait for that.
	if c, err := s.own.Container(ctx, id); err != nil || c.State != core.ContainerExited {
		return
	}
	unlock, err := s.settling.Lock(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	c, err := s.own.Container(ctx, id)
	if err != nil || c.State != core.ContainerExited {
		return
	}
	a := core.StopRequest{Owner: s.o.Owner, Call: "longshore agent: the container has ended", At: c.Main.Finished}
	if rec := RecordOf(c); rec.AutoRemove && !waits(rec, &c) && !s.sessions.busy(id) {
		err = s.remove(ctx, c, Removal{engine.RemoveOptions{Force: true, Request: a}, true})
	} else {
		var sb core.Sandbox
		if sb, err = s.own.Sandbox(ctx, c.Sandbox); err == nil {
			err = s.own.StopSandbox(ctx, c.Sandbox, engine.StopOptions{IfEnded: true, Request: a})
		}
		if err == nil {
			s.settleHolders(ctx, &sb)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
		s.o.Logger.WarnContext(ctx, "could not release the resources of an ended container; the agent's next start will retry", "container", string(id), "error", err)
	}
}

// waits reports whether an ended container still waits for its first start: the process that was to become its
// program has ended with the pid namespace of another container.
func waits(rec Record, c *core.Container) bool {
	asked := c.Main.StopRequest
	return rec.Later && c.Main.Started.IsZero() && (asked == nil || asked.Call == restCall) && c.Main.Autopsy.Start == ""
}

// Recover removes our incomplete objects after a crash: sandboxes without a container, containers with AutoRemove that were not
// started, and logs without a container. It must return before anything is served.
func (s *Service) Recover(ctx context.Context) error {
	sandboxes, err := s.own.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	containers, err := s.own.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	used := map[core.ID]core.Container{}
	for _, c := range containers {
		used[c.Sandbox] = c
		if c.Config.IO.Hold && c.State != core.ContainerExited {
			s.sessions.orphan(c.ID) // its client went away with the last agent
		}
	}
	a := core.StopRequest{Owner: s.o.Owner, Call: "longshore agent: recovery"}
	errs := []error{s.resumeCommitted(ctx)}
	for _, sb := range sandboxes {
		c, ok := used[sb.ID]
		if rec := RecordOf(c); ok && string(sb.Data) != unfinished && (c.State != core.ContainerCreated || !rec.AutoRemove || rec.Later) {
			continue
		}
		remove := func() error { return s.own.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: a}) }
		if ok {
			remove = func() error { return s.remove(ctx, c, Removal{engine.RemoveOptions{Force: true, Request: a}, true}) }
		}
		if err := remove(); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", sb.ID.Short(), err))
			continue
		}
		delete(used, sb.ID)
	}
	errs = append(errs, removals{s.o.Removals, s.own}.resume(ctx))
	logs, err := os.ReadDir(s.o.LogDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(append(errs, err)...)
	}
	for _, l := range logs {
		id, _, ok := strings.Cut(l.Name(), ".log")
		if _, live := used[core.ID(id)]; ok && !live {
			errs = append(errs, os.Remove(filepath.Join(s.o.LogDir, l.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeLog removes a removed container's output, if it is in the directory of logs.
func removeLog(dir string, c core.Container) error {
	log := RecordOf(c).Log
	if log == "" || filepath.Dir(log) != filepath.Clean(dir) {
		return nil
	}
	return removeLogFiles(log)
}

// removeLogFiles removes a log and its rotated files, which have numbers without a gap.
func removeLogFiles(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for i := 1; i < translate.MaxLogFiles; i++ {
		rerr := os.Remove(fmt.Sprintf("%s.%d", path, i))
		if errors.Is(rerr, os.ErrNotExist) {
			break
		}
		err = errors.Join(err, rerr)
	}
	return err
}
