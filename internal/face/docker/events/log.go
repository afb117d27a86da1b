package events

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
)

const (
	// kept is the number of events that a client can read later, and keptBytes bounds their documents.
	kept      = 256
	keptBytes = 4 << 20
	// queued is the number of events that wait for a client, and queuedBytes bounds their documents. The connection of a client that
	// reads more slowly is closed: it continues with the kept events, and learns that it has lost some.
	queued      = 1024
	queuedBytes = 8 << 20
)

// log keeps the last events and gives new ones to its readers. The zero value is ready to use.
type log struct {
	mu      sync.Mutex // guards last, bytes, readers and the fields of readers
	last    []*entry
	bytes   int // of the documents of last
	readers map[*reader]struct{}
}

// entry is an event with its document, which all readers share. It is only read.
type entry struct {
	dockertypes.Event
	doc []byte
	// short is the event without the command of its exec; nil if it has none.
	short *entry
}

// reader is a client that reads events.
type reader struct {
	past int // the number of kept events that the queue began with
	// queue begins with the event that is being sent.
	queue []*entry
	bytes int           // of the documents in queue
	some  chan struct{} // has one if queue may have become longer
	full  bool          // the client has lost events
	cut   func()        // ends the client's write
}

// newEntry makes an entry; nil if the event has no document.
func newEntry(e *dockertypes.Event) *entry {
	doc, err := dockerhttp.Document(e)
	if err != nil {
		return nil
	}
	n := &entry{Event: *e, doc: doc}
	if name, _, ok := strings.Cut(e.Action, ":"); ok && strings.HasPrefix(name, "exec_") {
		short := *e
		short.Action, short.Status = name, name
		n.short = newEntry(&short)
	}
	return n
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
	n := newEntry(&e)
	if n == nil {
		return
	}
	l.keep(n)
	for r := range l.readers {
		r.add(n)
	}
}

// keep adds an event to the kept ones and drops the oldest. Preconditions: mu is held.
func (l *log) keep(e *entry) {
	l.last = append(l.last, e)
	l.bytes += len(e.doc)
	drop := 0
	for ; len(l.last)-drop > kept || l.bytes > keptBytes && len(l.last)-drop > 1; drop++ {
		l.bytes -= len(l.last[drop].doc)
	}
	if drop > 0 {
		rest := copy(l.last, l.last[drop:])
		clear(l.last[rest:])
		l.last = l.last[:rest]
	}
}

// add adds an event to the queue. Preconditions: the log's mu is held.
func (r *reader) add(e *entry) {
	switch {
	case r.full:
		return
	case len(r.queue) >= queued || len(r.queue) > 0 && r.bytes+len(e.doc) > queuedBytes:
		r.full, r.queue = true, nil
		r.cut()
	default:
		r.queue = append(r.queue, e)
		r.bytes += len(e.doc)
	}
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// read returns a reader of the kept events between two times and of those that follow, until leave is called. Without any time it
// has no kept events. cut is called when the reader's queue is full; it must not block.
func (l *log) read(since, until time.Time, cut func()) *reader {
	r := &reader{some: make(chan struct{}, 1), cut: cut}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.last {
		at := time.Unix(0, e.TimeNano)
		if since.IsZero() && until.IsZero() || at.Before(since) || !until.IsZero() && at.After(until) {
			continue
		}
		r.add(e)
	}
	r.past = len(r.queue)
	if l.readers == nil {
		l.readers = map[*reader]struct{}{}
	}
	l.readers[r] = struct{}{}
	return r
}

func (l *log) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
}

// next returns the next event of a reader, which stays in its queue until sent is called. It waits for one until done or end; nil is
// none, or the queue was full. With ready it returns an event that is in the queue also after the end.
func (l *log) next(r *reader, done <-chan struct{}, end <-chan time.Time, ready bool) *entry {
	for {
		if !ready {
			select {
			case <-end:
				return nil
			default:
			}
		}
		l.mu.Lock()
		full, some := r.full, len(r.queue) > 0
		var e *entry
		if some {
			e = r.queue[0]
		}
		l.mu.Unlock()
		if full || some {
			return e
		}
		select {
		case <-r.some:
		case <-end:
			return nil
		case <-done:
			return nil
		}
	}
}

// sent removes the first event of a reader's queue.
func (l *log) sent(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.queue) > 0 {
		r.bytes -= len(r.queue[0].doc)
		r.queue[0] = nil
		r.queue = r.queue[1:]
	}
}

// lost reports whether a reader's queue was full.
func (l *log) lost(r *reader) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.full
}

// count returns the number of readers.
func (l *log) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers)
}
