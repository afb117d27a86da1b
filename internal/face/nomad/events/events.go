// Package events sends Nomad the events of tasks: their ends, and the reasons of their waits.
//
// It must not know the sources of events. Start at Feed.
package events

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/nomad/translate"
)

// backlog bounds the events that wait for a stream's client; further ones are dropped, with a line
// in the log.
const backlog = 256

// Feed has the events of all tasks.
type Feed struct {
	engine *engine.Client
	log    *slog.Logger

	mu       sync.Mutex                                   // guards streams, lastSent
	streams  map[chan *nomaddriver.DriverTaskEvent]string // the driver's name of each
	lastSent uint64                                       // the last of the engine's events that a stream has sent; 0 before the first stream
}

// New returns a feed without streams.
func New(e *engine.Client, log *slog.Logger) *Feed {
	return &Feed{engine: e, log: log, streams: map[chan *nomaddriver.DriverTaskEvent]string{}}
}

// Tell sends an event of a task to the streams of the driver that started it. Nomad has no handler
// for an event of another driver's task. Without a stream the event is lost.
func (f *Feed) Tell(driver string, t *nomaddriver.TaskConfig, message string, annotations map[string]string) {
	e := event(t.GetId(), t.GetAllocId(), t.GetName(), time.Now())
	e.Message, e.Annotations = message, annotations
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch, name := range f.streams {
		if name != driver {
			continue
		}
		select {
		case ch <- e:
		default:
			f.log.Warn("an event was dropped: its client is too slow", "task", t.GetId(), "message", message)
		}
	}
}

func event(id, alloc, name string, at time.Time) *nomaddriver.DriverTaskEvent {
	return &nomaddriver.DriverTaskEvent{TaskId: id, AllocId: alloc, TaskName: name, Timestamp: timestamppb.New(at)}
}

// Stream sends the events of a driver's tasks until ctx ends. The ends of tasks continue where the
// last stream of this agent stopped. The first one's begin with the agent: at its start it records
// ends from before, which the last agent could not send.
func (f *Feed) Stream(ctx context.Context, driver string, send func(*nomaddriver.DriverTaskEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := f.since(ctx)
	if err != nil {
		return err
	}
	out := make(chan *nomaddriver.DriverTaskEvent, backlog)
	f.mu.Lock()
	f.streams[out] = driver
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.streams, out)
		f.mu.Unlock()
	}()
	ends := make(chan core.Event)
	failed := make(chan error, 1)
	w := engine.Watch{Kinds: []core.EventKind{core.EventContainerExited}, Since: &from, Event: func(ctx context.Context, e core.Event) error {
		select {
		case ends <- e:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
	go func() { failed <- w.Run(ctx, f.engine) }()
	for {
		select {
		case e := <-out:
			if err := send(e); err != nil {
				return err
			}
		case e := <-ends:
			if end := ended(e); end != nil && f.of(ctx, e, driver) {
				if err := send(end); err != nil {
					return err
				}
			}
			f.mu.Lock()
			f.lastSent = max(f.lastSent, e.Seq)
			f.mu.Unlock()
		case err := <-failed:
			return errors.Join(err, context.Cause(ctx))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// since returns the number of the first event to read. Trimmed ones are lost.
func (f *Feed) since(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lastSent > 0 {
		return f.lastSent, nil
	}
	seq, err := f.engine.LastSeq(ctx)
	if err != nil {
		return 0, err
	}
	f.lastSent = seq
	return f.engine.Began, nil
}

// of reports whether a driver started the task of an event. A container without the label, or one that
// is gone, may be any driver's.
func (f *Feed) of(ctx context.Context, e core.Event, driver string) bool {
	c, err := f.engine.Container(ctx, e.Container)
	name := c.Labels[translate.DriverLabel]
	return err != nil || name == "" || name == driver
}

// ended returns the event of a task's end; nil for other events.
func ended(e core.Event) *nomaddriver.DriverTaskEvent {
	p := strings.Split(string(e.Key), "/")
	if len(p) != 3 || e.Autopsy == nil {
		return nil
	}
	a := e.Autopsy
	out := event(string(e.Key), p[0], p[1], e.At)
	out.Message, out.Annotations = a.Verdict, map[string]string{"exit_status": strconv.Itoa(a.Exit.Status())}
	if a.OOM != nil {
		out.Annotations["oom"], out.Annotations["oom_level"] = "true", a.OOM.Level
	}
	if a.Peak > 0 {
		out.Annotations["memory_peak"] = strconv.FormatUint(a.Peak, 10)
	}
	if a.Exit.Lost {
		out.Annotations["lost"] = "true"
	}
	if a.LostOutput > 0 {
		out.Annotations["lost_output"] = strconv.FormatUint(a.LostOutput, 10)
	}
	if n := len(a.Tail); n > 0 {
		out.Annotations["last_line"] = a.Tail[n-1]
	}
	return out
}
