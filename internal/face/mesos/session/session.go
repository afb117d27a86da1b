// Package session has the sessions of Mesos' clients: processes that live as long as
// the connection that started them, further clients that watch their output, and the
// single client that may send input.
//
// It must not know HTTP. Start reading at Table and Session.Run.
package session

import (
	"bytes"
	"context"
	"sync"
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
)

// Send sends one record to a client. It may block while the client does not read, and
// returns when ctx ends.
type Send func(ctx context.Context, m *mesosagent.ProcessIO) error

// watcherBacklog is how many records are buffered for a slow watcher.
const watcherBacklog = 128

// Session is a process and the connection that started it.
type Session struct {
	*attach.Session
	TTY bool

	mu       sync.Mutex // guards watchers, ended
	watchers map[chan *mesosagent.ProcessIO]struct{}
	ended    bool
}

// Run sends the output, and heartbeats at once and at the given interval, until the
// process has ended and all output is sent. It returns how the process ended. If ctx
// ends or a send fails, it returns an error.
func (s *Session) Run(ctx context.Context, send Send, every time.Duration) (core.Autopsy, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.Close()
	defer s.closeWatchers()
	if err := send(ctx, heartbeat(every)); err != nil { // even for a session that ends at once
		return core.Autopsy{}, err
	}
	var signs sync.WaitGroup
	defer signs.Wait()
	defer cancel(nil)
	signs.Go(func() {
		if err := sendHeartbeats(ctx, send, every); err != nil {
			cancel(err)
		}
	})
	s.Output = func(stderr bool, data []byte) error { return s.tee(ctx, outputRecord(stderr, data), send) }
	return s.Session.Run(ctx)
}

// outputRecord is output as a record, with a copy of data.
func outputRecord(stderr bool, data []byte) *mesosagent.ProcessIO {
	kind := mesosagent.ProcessIO_Data_STDOUT
	if stderr {
		kind = mesosagent.ProcessIO_Data_STDERR
	}
	return &mesosagent.ProcessIO{
		Type: mesosagent.ProcessIO_DATA.Enum(), Data: &mesosagent.ProcessIO_Data{Type: kind.Enum(), Data: bytes.Clone(data)},
	}
}

// tee sends to the watchers, without waiting for them, and then to the session's own
// connection.
func (s *Session) tee(ctx context.Context, m *mesosagent.ProcessIO, send Send) error {
	s.mu.Lock()
	for v := range s.watchers {
		select {
		case v <- m:
		default: // the watcher is too slow and misses this record
		}
	}
	s.mu.Unlock()
	return send(ctx, m)
}

// Watch opens another connection, and sends the output to it from then on until the
// session or ctx ends.
func (s *Session) Watch(ctx context.Context, open func() (Send, error), every time.Duration) error {
	v := s.subscribe()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, v)
		s.mu.Unlock()
	}()
	send, err := open()
	if err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case m, ok := <-v:
			if !ok {
				return nil
			}
			err = send(ctx, m)
		case <-tick.C:
			err = send(ctx, heartbeat(every))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// subscribe adds a watcher. Its channel is closed at the end of the session.
func (s *Session) subscribe() chan *mesosagent.ProcessIO {
	v := make(chan *mesosagent.ProcessIO, watcherBacklog)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		close(v)
		return v
	}
	if s.watchers == nil {
		s.watchers = map[chan *mesosagent.ProcessIO]struct{}{}
	}
	s.watchers[v] = struct{}{}
	return v
}

// closeWatchers ends the watchers' streams.
func (s *Session) closeWatchers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for v := range s.watchers {
		close(v)
		delete(s.watchers, v)
	}
}

// sendHeartbeats sends heartbeats until ctx ends, which is not an error.
func sendHeartbeats(ctx context.Context, send Send, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := send(ctx, heartbeat(every)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// heartbeat is a heartbeat record that announces the interval.
func heartbeat(every time.Duration) *mesosagent.ProcessIO {
	ns := every.Nanoseconds()
	return &mesosagent.ProcessIO{Type: mesosagent.ProcessIO_CONTROL.Enum(), Control: &mesosagent.ProcessIO_Control{
		Type:      mesosagent.ProcessIO_Control_HEARTBEAT.Enum(),
		Heartbeat: &mesosagent.ProcessIO_Control_Heartbeat{Interval: &mesosv1.DurationInfo{Nanoseconds: &ns}},
	}}
}

// Table has the running sessions by id in text form. The zero value is ready to use.
type Table struct {
	mu     sync.Mutex // guards live, inputs
	live   map[string]*Session
	inputs map[string]bool
}

// Begin adds a session.
func (t *Table) Begin(id string, s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[string]*Session{}
	}
	t.live[id] = s
}

// End removes a session.
func (t *Table) End(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, id)
}

// Live returns a running session; nil if there is none.
func (t *Table) Live(id string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// Input reserves the input of a container, which only one client may have at a time;
// false if another has it.
func (t *Table) Input(id string) (release func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inputs[id] {
		return nil, false
	}
	if t.inputs == nil {
		t.inputs = map[string]bool{}
	}
	t.inputs[id] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.inputs, id)
	}, true
}
