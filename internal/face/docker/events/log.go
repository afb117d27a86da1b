package events

import (
	"maps"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/dockertypes"
)

const (
	// kept is the number of events that a client can read later.
	kept = 256
	// queued is the number of events that wait for a client. One that reads more slowly loses further ones.
	queued = 1024
)

// log keeps the last events and gives new ones to its readers. The zero value is ready to use.
type log struct {
	mu      sync.Mutex // guards last, readers
	last    []dockertypes.Event
	readers map[chan dockertypes.Event]struct{}
}

// add adds an event. The times of events ascend, so that a client that has lost its connection continues with the time of the
// last event that it has read.
func (l *log) add(at time.Time, typ, action, id string, attributes map[string]string) {
	e := dockertypes.Event{Type: typ, Action: action, Actor: dockertypes.Actor{ID: id, Attributes: attributes}, Scope: "local"}
	if e.Actor.Attributes = maps.Clone(attributes); e.Actor.Attributes == nil {
		e.Actor.Attributes = map[string]string{}
	}
	switch typ {
	case Container:
		e.Status, e.ID, e.From = action, id, attributes["image"]
	case Image:
		e.Status, e.ID = action, id
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.TimeNano = at.UnixNano()
	if n := len(l.last); n > 0 {
		e.TimeNano = max(e.TimeNano, l.last[n-1].TimeNano+1)
	}
	e.Time = e.TimeNano / int64(time.Second)
	if len(l.last) == kept {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	l.last = append(l.last, e)
	for r := range l.readers {
		select {
		case r <- e:
		default:
		}
	}
}

// read returns the kept events between two times, and a channel with those that follow, until leave is called. Without any
// time it returns no kept events.
func (l *log) read(since, until time.Time) (past []dockertypes.Event, next <-chan dockertypes.Event, leave func()) {
	r := make(chan dockertypes.Event, queued)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.last {
		at := time.Unix(0, e.TimeNano)
		if since.IsZero() && until.IsZero() || at.Before(since) || !until.IsZero() && at.After(until) {
			continue
		}
		past = append(past, e)
	}
	if l.readers == nil {
		l.readers = map[chan dockertypes.Event]struct{}{}
	}
	l.readers[r] = struct{}{}
	return past, r, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.readers, r)
	}
}

// count returns the number of readers.
func (l *log) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers)
}
