// Package session has the sessions of Mesos' clients: processes that live as long as
// the connection that asked for them, those who look on, and the one who may give
// input.
//
// It must not know HTTP. Start at Table and Session.Run.
package session

import (
	"bytes"
	"context"
	"sync"
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/attach"
)

// Send gives one record to a connection. It may block as long as the other end
// does not read, and returns when ctx ends.
type Send func(ctx context.Context, m *mesosagent.ProcessIO) error

// backlog is how many records are kept for an onlooker who is slow.
const watcherBacklog = 128

// Session is a process and the connection that it lives for.
type Session struct {
	*attach.Session
	TTY bool

	mu       sync.Mutex // guards watchers, ended
	watchers map[chan *mesosagent.ProcessIO]struct{}
	ended    bool
}

// Run sends the output, and a sign of life at once and every so often, until the process has
// ended and all is sent; or until ctx ends or a send fails, which is an error. It
// returns how the process ended.
func (s *Session) Run(ctx context.Context, send Send, every time.Duration) (core.Autopsy, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.Close()
	defer s.closeWatchers()
	if err := send(ctx, heartbeat(every)); err != nil { // however short it is
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

// record is output as a record, which keeps its own copy.
func outputRecord(stderr bool, data []byte) *mesosagent.ProcessIO {
	kind := mesosagent.ProcessIO_Data_STDOUT
	if stderr {
		kind = mesosagent.ProcessIO_Data_STDERR
	}
	return &mesosagent.ProcessIO{
		Type: mesosagent.ProcessIO_DATA.Enum(), Data: &mesosagent.ProcessIO_Data{Type: kind.Enum(), Data: bytes.Clone(data)},
	}
}

// tell sends to those who look on, who never hold anything up, and then on.
func (s *Session) tee(ctx context.Context, m *mesosagent.ProcessIO, send Send) error {
	s.mu.Lock()
	for v := range s.watchers {
		select {
		case v <- m:
		default: // too slow: it goes without
		}
	}
	s.mu.Unlock()
	return send(ctx, m)
}

// Watch opens the connection to one who looks on, and sends the output from then
// on until the session ends, or ctx does.
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

// look has the output go to one more place, which is closed at the end.
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

// end lets go of those who look on.
func (s *Session) closeWatchers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for v := range s.watchers {
		close(v)
		delete(s.watchers, v)
	}
}

// beat sends a sign of life every so often, until ctx ends, which is no error.
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

func heartbeat(every time.Duration) *mesosagent.ProcessIO {
	ns := every.Nanoseconds()
	return &mesosagent.ProcessIO{Type: mesosagent.ProcessIO_CONTROL.Enum(), Control: &mesosagent.ProcessIO_Control{
		Type:      mesosagent.ProcessIO_Control_HEARTBEAT.Enum(),
		Heartbeat: &mesosagent.ProcessIO_Control_Heartbeat{Interval: &mesosv1.DurationInfo{Nanoseconds: &ns}},
	}}
}

// Table has the sessions that run, by their names as text. The zero Table is ready.
type Table struct {
	mu     sync.Mutex // guards live, inputs
	live   map[string]*Session
	inputs map[string]bool
}

// Begin has a session in the table.
func (t *Table) Begin(id string, s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[string]*Session{}
	}
	t.live[id] = s
}

// End takes it off.
func (t *Table) End(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, id)
}

// Live is a session that has not ended; nil for none.
func (t *Table) Live(id string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// Input takes the only place from which a container gets input; false when
// somebody has it.
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
