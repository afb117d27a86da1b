package logs

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// The limits for each container, and for each line before it is cut.
const (
	recentBytes = 64 << 10
	recentLine  = 16 << 10
	recentCost  = 64 // of a line, besides its text
)

// Recent keeps in memory the last output of containers with a reader and without a sink.
type Recent struct {
	mu   sync.Mutex // guards of, more
	of   map[core.ID]*recent
	more chan struct{} // closed when there is more of any container; nil when nobody waits
}

// recent is the kept output of one container.
type recent struct {
	first   int // how many entries were forgotten
	entries []Entry
	cost    int
	open    map[string][]byte // of each stream, the line that has not ended
}

// NewRecent returns one that keeps nothing yet.
func NewRecent() *Recent { return &Recent{of: map[core.ID]*recent{}} }

// Add adds a container's output to a stream.
func (r *Recent) Add(id core.ID, stream string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of[id]
	if c == nil {
		c = &recent{open: map[string][]byte{}}
		r.of[id] = c
	}
	now := time.Now()
	for len(data) > 0 {
		line, rest, ended := bytes.Cut(data, []byte{'\n'})
		if room := recentLine - len(c.open[stream]); len(line) > room {
			line, rest, ended = data[:room], data[room:], false
		}
		text := append(c.open[stream], line...)
		data = rest
		if ended || len(text) == recentLine {
			c.add(Entry{At: now, Stream: stream, Partial: !ended, Text: text})
			text = nil
		}
		c.open[stream] = text
	}
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// add adds an entry, and forgets the oldest ones for it.
func (c *recent) add(e Entry) {
	c.entries = append(c.entries, e)
	c.cost += len(e.Text) + recentCost
	n := 0
	for ; c.cost > recentBytes; n++ {
		c.cost -= len(c.entries[n].Text) + recentCost
	}
	c.first += n
	clear(c.entries[:n])
	c.entries = c.entries[n:] // append moves it once in a while
}

// Drop forgets a container.
func (r *Recent) Drop(id core.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, id)
}

// Read calls fn as the function Read does, for the kept output of a container.
func (r *Recent) Read(ctx context.Context, id core.ID, o Options, fn func(Entry) error) error {
	next := r.begin(id, o.Tail)
	if o.Begun != nil {
		o.Begun()
	}
	for ended := !o.Follow; ; {
		list, at, more := r.since(id, next, ended)
		for _, e := range list {
			if !o.Since.IsZero() && e.At.Before(o.Since) || !o.Until.IsZero() && e.At.After(o.Until) {
				continue
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		if next = at; ended {
			return nil
		}
		select {
		case <-more:
		case <-o.Ended:
			ended = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// begin returns the number of the first of the last tail entries.
func (r *Recent) begin(id core.ID, tail int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of[id]
	switch {
	case c == nil || tail == 0:
		return 0
	case tail < 0:
		return c.first + len(c.entries)
	}
	return c.first + max(0, len(c.entries)-tail)
}

// since returns the entries from a number on, the next number, and a channel that is closed when
// there may be more. With all, incomplete lines are among them.
func (r *Recent) since(id core.ID, next int, all bool) (list []Entry, at int, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.more == nil {
		r.more = make(chan struct{})
	}
	c := r.of[id]
	if c == nil {
		return nil, next, r.more
	}
	list = slices.Clone(c.entries[min(max(0, next-c.first), len(c.entries)):])
	if all {
		for _, stream := range []string{"stdout", "stderr"} {
			if text := c.open[stream]; len(text) > 0 {
				list = append(list, Entry{At: time.Now(), Stream: stream, Partial: true, Text: slices.Clone(text)})
			}
		}
	}
	return list, c.first + len(c.entries), r.more
}
