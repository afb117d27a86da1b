package ship

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/logs/driver"
)

// The most that one batch has, and so the most lines that arrive twice after the death of an agent, but for open lines.
const (
	batchLines = 256
	batchBytes = 256 << 10
)

const (
	// lineBytes is the longest text of a message: a longer line becomes several partial messages, as with docker.
	lineBytes = 16 << 10
	// openLines is the number of lines of the other stream after which a line without an end is sent as it is.
	openLines = 1024
)

// suffix ends the names of the files with positions.
const suffix = ".position"

// follower delivers the output of one container. Only run uses the fields below the channels.
type follower struct {
	r         *Runner
	container *core.Container
	sinks     []core.Sink
	sender    driver.Sender
	path      string       // of its position
	check     func() error // the driver's files

	end     func()                  // closes ending
	ending  chan struct{}           // closed when nothing more will be written
	stop    func()                  // closes stopped
	stopped chan struct{}           // closed to give up
	done    chan struct{}           // closed when run has returned
	failing atomic.Pointer[Trouble] // the service does not take lines
	started atomic.Int64            // the time of the program's last start, in nanoseconds

	position logs.Position // after everything that was accepted
	batch    []driver.Message
	size     int
	next     logs.Position        // after the batch
	open     map[string]*openLine // of each stream, the line without an end
}

// openLine is the read part of a line.
type openLine struct {
	at     time.Time
	text   []byte
	before logs.Position // the position before it
	since  int           // lines of the other stream after it
	part   *driver.Part  // the last sent part
}

func newFollower(ctx context.Context, r *Runner, c *core.Container) (*follower, error) {
	d, err := driver.Parse(c.Config.LogDriver.Name, c.Config.LogDriver.Options)
	if err != nil {
		return nil, err
	}
	f := &follower{
		r: r, container: c, path: filepath.Join(r.Dir, string(c.ID)+suffix), open: map[string]*openLine{},
		ending: make(chan struct{}), stopped: make(chan struct{}), done: make(chan struct{}),
	}
	f.end = sync.OnceFunc(func() { close(f.ending) })
	f.stop = sync.OnceFunc(func() { close(f.stopped) })
	if f.sinks = logs.Whole(c.Config.IO.Sinks); !readable(f.sinks) {
		return nil, errors.New("the container has no log with times and streams")
	}
	if f.sender, err = d.Sender(driver.SourceOf(c)); err != nil {
		return nil, err
	}
	f.check = d.CheckFiles
	if err := f.check(); err != nil { // somebody may repair them
		r.Log.WarnContext(ctx, "the files of a log driver cannot be used; will retry", "container", c.ID, "driver", d.Name, "error", err)
		t := troubleOf(c, time.Now(), err)
		t.files = true
		f.failing.Store(&t)
	}
	b, err := os.ReadFile(f.path)
	if err == nil {
		err = json.Unmarshal(bytes.TrimRight(b, " \n"), &f.position)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Log.WarnContext(ctx, "could not read the position in a log, so its lines are sent again", "container", c.ID, "error", err)
		f.position = logs.Position{}
	}
	return f, nil
}

// run follows the log until ctx ends, stop is called, or everything was delivered after finish.
func (f *follower) run(ctx context.Context) {
	defer close(f.done)
	defer func() { _ = f.sender.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.stopped:
			cancel()
		case <-f.done:
		}
	}()
	for {
		from := f.position
		f.next = from
		err := logs.Read(ctx, f.sinks[0], logs.Options{
			Follow: true, Ended: f.ending, From: &from,
			Idle: func() error {
				err := f.flush(ctx)
				f.batch = nil // an idle follower has no buffers
				return err
			},
			Lost: func(lines int) { f.r.Lost(f.container, lines, "the log was rotated before the service took them") },
		}, func(e logs.Entry) error { return f.add(ctx, e) })
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			f.last(ctx)
			return
		}
		f.r.Log.WarnContext(ctx, "could not follow a log for its driver; will retry", "container", f.container.ID, "error", err)
		f.batch, f.size = nil, 0
		clear(f.open)
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// add adds an entry to the batch.
func (f *follower) add(ctx context.Context, e logs.Entry) error {
	before := f.next
	f.next = e.End
	l := f.open[e.Stream]
	if l != nil && len(l.text) > 0 && l.at.Before(time.Unix(0, f.started.Load())) && e.At.After(time.Unix(0, f.started.Load())) {
		f.put(e.Stream, l, false) // the last line of the program's run before, which did not end it
		l = nil
	}
	switch {
	case l == nil:
		l = &openLine{at: e.At, before: before}
	case len(l.text) == 0:
		l.at, l.before = e.At, before
	}
	if len(l.text) > 0 && len(l.text)+len(e.Text) > lineBytes {
		f.put(e.Stream, l, true)
		l = &openLine{at: e.At, before: before, part: l.part}
	}
	l.text = append(l.text, e.Text...)
	if e.Partial {
		f.open[e.Stream] = l
	} else {
		delete(f.open, e.Stream)
		f.put(e.Stream, l, false)
	}
	for stream, o := range f.open {
		if o.since++; stream != e.Stream && o.since > openLines && len(o.text) > 0 {
			f.put(stream, o, true)
			f.open[stream] = &openLine{part: o.part}
		}
	}
	if len(f.batch) >= batchLines || f.size >= batchBytes {
		return f.flush(ctx)
	}
	return nil
}

// put adds a line to the batch, or a part of one.
func (f *follower) put(stream string, l *openLine, partial bool) {
	switch {
	case l.part != nil:
		l.part = &driver.Part{ID: l.part.ID, Ordinal: l.part.Ordinal + 1, Last: !partial}
	case partial:
		l.part = &driver.Part{ID: rand.Text(), Ordinal: 1}
	}
	f.batch = append(f.batch, driver.Message{At: l.at, Stderr: stream == "stderr", Part: l.part, Text: l.text})
	f.size += len(l.text)
}

// last sends the lines without an end, after the last output.
func (f *follower) last(ctx context.Context) {
	for _, stream := range []string{"stdout", "stderr"} {
		if l := f.open[stream]; l != nil && len(l.text) > 0 {
			f.put(stream, l, false)
			delete(f.open, stream)
		}
	}
	_ = f.flush(ctx)
}

// flush delivers the batch, however long that takes, and stores the position after it.
func (f *follower) flush(ctx context.Context) error {
	if len(f.batch) == 0 {
		return nil
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := f.sender.Send(ctx, f.batch)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		t := troubleOf(f.container, time.Now(), err)
		if f.failing.CompareAndSwap(nil, &t) {
			f.r.Log.WarnContext(ctx, "a log service does not take lines; will retry", "container", f.container.ID, "driver", f.container.Config.LogDriver.Name, "error", err)
		}
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
	if f.failing.Swap(nil) != nil {
		f.r.Log.InfoContext(ctx, "a log service takes lines again", "container", f.container.ID, "driver", f.container.Config.LogDriver.Name)
	}
	clear(f.batch)
	f.batch, f.size = f.batch[:0], 0
	f.position = f.next
	for _, l := range f.open { // the next agent must read their beginnings again
		if len(l.text) > 0 && earlier(l.before, f.position) {
			f.position = l.before
		}
	}
	return f.store()
}

// earlier reports whether a is before b. They are positions of one reader: with another file, a is older, because it was kept.
func earlier(a, b logs.Position) bool {
	return a.Inode != b.Inode || !bytes.Equal(a.Head, b.Head) || a.Offset < b.Offset
}

// store writes the position. One write of a small file is complete after the death of a process.
func (f *follower) store() error {
	b, err := json.Marshal(f.position)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(fmt.Appendf(nil, "%-255s\n", b), 0)
	return errors.Join(err, file.Close())
}

// finish waits until everything is delivered: for at most Patience, and less if the service is down. Nothing more is written to the
// log.
func (f *follower) finish(ctx context.Context) {
	f.end()
	patience := Patience
	if f.failing.Load() != nil {
		patience = downPatience
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// remove removes the position of a removed container, and counts the lines that were not delivered.
func (f *follower) remove() {
	if n := f.left(); n > 0 {
		f.r.Lost(f.container, n, "the container was removed before the service took them")
	}
	f.r.forget(f.container.ID)
}

// left counts the lines after the position.
func (f *follower) left() (n int) {
	from := f.position
	_ = logs.Read(context.Background(), f.sinks[0], logs.Options{From: &from}, func(e logs.Entry) error {
		if !e.Partial {
			n++
		}
		return nil
	})
	return n
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
