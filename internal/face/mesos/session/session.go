// Package session joins processes and those who are connected to them: a session,
// which lives as long as the connection that asked for it, those who look on, and
// the one who may give input.
//
// It must not know HTTP. Start at Table and Session.Run.
package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
)

// Send gives one record to a connection. It may block as long as the other end
// does not read, and returns when ctx ends.
type Send func(ctx context.Context, m *mesosagent.ProcessIO) error

const (
	chunk   = 32 << 10 // of output, the most in one record
	backlog = 128      // records kept for an onlooker who is slow
)

// Session is a process and the connection that it lives for.
type Session struct {
	Ref     core.Ref
	TTY     bool
	Streams *core.Streams

	followed chan struct{} // closed when autopsy or lost is there
	unfollow context.CancelFunc
	autopsy  core.Autopsy
	lost     error

	mu    sync.Mutex // guards views, over
	views map[chan *mesosagent.ProcessIO]struct{}
	over  bool
}

// Follow has the process's end awaited from now on: later its name may be
// another's. Ended lets go of it.
func (s *Session) Follow(wait func(context.Context) (core.Autopsy, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	s.followed, s.unfollow = make(chan struct{}), cancel
	go func() {
		defer close(s.followed)
		s.autopsy, s.lost = wait(ctx)
	}()
}

// Ended tells how the process ended, once it has, or fails when ctx ends before. To
// be called once, after Follow.
func (s *Session) Ended(ctx context.Context) (core.Autopsy, error) {
	defer s.unfollow()
	select {
	case <-s.followed:
		return s.autopsy, s.lost
	case <-ctx.Done():
		return core.Autopsy{}, context.Cause(ctx)
	}
}

// Run sends the output, and a sign of life at once and every so often, until the process has
// ended and all is sent; or until ctx ends or a send fails, which is an error.
func (s *Session) Run(ctx context.Context, send Send, every time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = s.Streams.Close() })
	defer stop()
	defer s.end()
	if err := send(ctx, heartbeat(every)); err != nil { // however short it is
		return err
	}
	var signs sync.WaitGroup
	defer signs.Wait()
	defer cancel(nil)
	signs.Go(func() {
		if err := beat(ctx, send, every); err != nil {
			cancel(err)
		}
	})
	var out sync.WaitGroup
	for kind, r := range map[mesosagent.ProcessIO_Data_Type]io.Reader{mesosagent.ProcessIO_Data_STDOUT: s.Streams.Stdout, mesosagent.ProcessIO_Data_STDERR: s.Streams.Stderr} {
		if r == nil {
			continue
		}
		out.Go(func() {
			if err := Copy(ctx, r, kind, s.tell(send)); err != nil {
				cancel(err)
			}
		})
	}
	out.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// tell sends to those who look on, who never hold anything up, and then on.
func (s *Session) tell(send Send) Send {
	return func(ctx context.Context, m *mesosagent.ProcessIO) error {
		s.mu.Lock()
		for v := range s.views {
			select {
			case v <- m:
			default: // too slow: it goes without
			}
		}
		s.mu.Unlock()
		return send(ctx, m)
	}
}

// Watch opens the connection to one who looks on, and sends the output from then
// on until the session ends, or ctx does.
func (s *Session) Watch(ctx context.Context, open func() (Send, error), every time.Duration) error {
	v := s.look()
	defer func() {
		s.mu.Lock()
		delete(s.views, v)
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
func (s *Session) look() chan *mesosagent.ProcessIO {
	v := make(chan *mesosagent.ProcessIO, backlog)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		close(v)
		return v
	}
	if s.views == nil {
		s.views = map[chan *mesosagent.ProcessIO]struct{}{}
	}
	s.views[v] = struct{}{}
	return v
}

// end lets go of those who look on.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for v := range s.views {
		close(v)
		delete(s.views, v)
	}
}

// Copy sends what r has as output of this kind, until its end. A read that fails
// because ctx has ended is its end too.
func Copy(ctx context.Context, r io.Reader, kind mesosagent.ProcessIO_Data_Type, send Send) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			m := &mesosagent.ProcessIO{
				Type: mesosagent.ProcessIO_DATA.Enum(), Data: &mesosagent.ProcessIO_Data{Type: kind.Enum(), Data: bytes.Clone(buf[:n])},
			}
			if serr := send(ctx, m); serr != nil {
				return serr
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		default:
			return fmt.Errorf("copy output: %w", err)
		}
	}
}

// beat sends a sign of life every so often, until ctx ends, which is no error.
func beat(ctx context.Context, send Send, every time.Duration) error {
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

// remembered bounds the sessions whose end is kept, to be asked for afterwards.
const remembered = 1024

// Table has the sessions by their names as text. The zero Table is ready.
type Table struct {
	mu     sync.Mutex // guards live, past, order, inputs, path, file, lines, lost
	live   map[string]*Session
	past   map[string]core.Autopsy
	order  []string // of past, oldest first
	inputs map[string]bool

	path  string      // of the file with past, "" for none
	file  *os.File    // open to add to it
	lines int         // that it has
	lost  func(error) // is told of what could not be written
}

// Begin has a session in the table.
func (t *Table) Begin(id string, s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[string]*Session{}
	}
	t.forget(func(p string) bool { return p == id })
	t.live[id] = s
}

// End takes it off, and remembers how it ended where that is known.
func (t *Table) End(id string, a *core.Autopsy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, id)
	if a == nil {
		return
	}
	t.remember(id, *a)
	t.note(line{id, a})
}

// Live is a session that has not ended; nil for none.
func (t *Table) Live(id string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// Past tells how a session ended, while that is remembered.
func (t *Table) Past(id string) (core.Autopsy, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.past[id]
	return a, ok
}

// Forget drops what is remembered of a container's sessions and of those in it.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(func(p string) bool { return p == id || strings.HasPrefix(p, id+".") })
}

// forget drops what match says; mu must be held.
func (t *Table) forget(match func(id string) bool) {
	var gone []string
	t.order = slices.DeleteFunc(t.order, func(id string) bool {
		if !match(id) {
			return false
		}
		gone = append(gone, id)
		delete(t.past, id)
		return true
	})
	for _, id := range gone {
		t.note(line{ID: id})
	}
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
