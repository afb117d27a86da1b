package publish

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/atomicfile"
)

// position is the sent part of a log: all messages before a time, and so many of that time. The
// zero position is its beginning. Later messages may have been sent too.
type position struct {
	At time.Time `json:"at"`
	N  int       `json:"n,omitempty"`
}

// positions are those of a subscription, by the logs' names.
type positions map[string]position

// item is a message that waits to be sent.
type item struct {
	m   *swarmv1.LogMessage
	log string // its log; "" for one outside of a log
	to  position
}

// messages are those of items.
func messages(list []item) (all []*swarmv1.LogMessage) {
	for _, i := range list {
		all = append(all, i.m)
	}
	return all
}

// name is that of an output's log, so that a later agent finds it. A restarted task has another
// container, and continues in the same log.
func (o Output) name() string {
	if len(o.Sinks) == 1 {
		return o.Sinks[0].Path
	}
	return string(o.Container)
}

// reading is the reader of a log.
type reading struct {
	ended chan struct{} // closed when it has ended
	read  position      // the read part, for waiters for over
}

// step counts a complete message. The beginnings of others may be before it in the log; a reader
// that begins here reads them again.
func (l *lines) step(m *swarmv1.LogMessage) position {
	if at := m.GetTimestamp().AsTime(); !at.Equal(l.last.At) {
		l.last = position{At: at}
	}
	l.last.N++
	to := l.last
	for _, b := range l.begun {
		if at := b.GetTimestamp().AsTime(); !at.After(to.At) {
			to = position{At: at}
		}
	}
	return to
}

// again reports whether the message that was counted last was sent before the reader began.
func (l *lines) again() bool {
	if l.last.At.Equal(l.start.At) && l.last.N <= l.start.N {
		return true
	}
	l.start = position{} // a clock may be set back to it
	return false
}

// The bounds of stored positions.
const (
	settle       = time.Second // the age of a stored position: until then a stream may fail with sent messages
	maxPositions = 4096        // of all subscriptions; others begin again
)

// kept are the positions that outlive the agent.
type kept struct {
	earlier map[string]positions // of subscriptions that no manager has named again yet
	until   time.Time            // when those expire
	written map[string]positions
}

// readKept reads the positions of an earlier agent.
func readKept(file string) (k kept, err error) {
	k.until = time.Now().Add(parked)
	if file == "" {
		return k, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &k.earlier)
	}
	if err != nil {
		k.earlier = nil // messages are sent again
	}
	k.written = maps.Clone(k.earlier)
	return k, err
}

// markChanged wakes keep: positions have changed.
func (p *Publisher) markChanged() {
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

// keep keeps positions when they have changed, until ctx ends.
func (p *Publisher) keep(ctx context.Context) {
	for p.o.File != "" {
		select {
		case <-ctx.Done():
			return
		case <-p.moved:
		}
		now := p.positions()
		if sleep(ctx, ctx, settle); ctx.Err() != nil {
			return
		}
		p.write(now)
	}
}

// positions are those of all subscriptions that follow.
func (p *Publisher) positions() map[string]positions {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, n := map[string]positions{}, 0
	if time.Now().After(p.kept.until) {
		p.kept.earlier = nil
	}
	add := func(id string, at positions) {
		if n += len(at); n <= maxPositions {
			all[id] = at
		}
	}
	for id, at := range p.kept.earlier {
		add(id, at)
	}
	for id, s := range p.subs {
		if at, ok := s.positions(); ok {
			add(id, at)
		} else if at, ok := p.kept.written[id]; ok {
			add(id, at)
		}
	}
	return all
}

// positions returns those of a subscription; false if there are none to store, because it does not
// follow or because a manager may not have taken the last messages.
func (s *subscription) positions() (positions, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.at), s.follow && !s.unsure
}

// writeLast keeps how far all subscriptions were when the agent ends.
func (p *Publisher) writeLast() {
	all := p.positions()
	p.mu.Lock()
	nothing := len(all) == 0 && len(p.kept.written) == 0
	p.mu.Unlock()
	if p.o.File != "" && !nothing {
		p.write(all)
	}
}

// write replaces the file.
func (p *Publisher) write(all map[string]positions) {
	data, err := json.Marshal(all)
	if err == nil {
		err = atomicfile.Replace(p.o.File, data, 0o600)
	}
	if err != nil {
		p.o.Logger.Warn("could not store the positions of sent output; after a crash of the agent output is sent again", "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.written = all
}
