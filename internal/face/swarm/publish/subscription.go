package publish

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

// subscription is one subscription of a manager.
type subscription struct {
	id     string
	p      *Publisher
	sel    *swarmv1.LogSelector
	follow bool
	from   logs.Options // for earlier output
	skip   int64        // how many of the first lines of each log are left out
	only   map[string]bool
	cancel context.CancelFunc

	mu      sync.Mutex // guards pending, size, link, done, ended, seen, reading, at, unsure, timer, base
	changed sync.Cond
	pending []item              // not sent yet
	size    int                 // of pending, in bytes
	link    *link               // nil while there is no session
	done    bool                // nothing more comes
	ended   bool                // nobody reads for it any more
	seen    map[core.ID]string  // containers that are read or were, with their logs
	reading map[string]*reading // present and former readers of followed logs
	at      positions           // of logs that are followed
	unsure  bool                // its last messages may be lost
	timer   *time.Timer         // ends it when no session comes
	base    context.Context     //nolint:containedctx // that of run
	readers sync.WaitGroup
	resumed bool // an earlier agent has served it
}

func newSubscription(p *Publisher, m *swarmv1.SubscriptionMessage, cancel context.CancelFunc) *subscription {
	o := m.GetOptions()
	s := &subscription{id: m.GetId(), p: p, sel: m.GetSelector(), follow: o.GetFollow(), cancel: cancel, seen: map[core.ID]string{}, reading: map[string]*reading{}, at: positions{}}
	s.changed.L = &s.mu
	if o.GetSince() != nil {
		s.from.Since = o.GetSince().AsTime()
	}
	// Below 0 it is the last -1-n lines, above 0 all but the first n.
	switch n := o.GetTail(); {
	case n == -1:
		s.from.Tail = -1
	case n < -1:
		s.from.Tail = int(min(-1-n, 1<<31-1))
	default:
		s.skip = n
	}
	if len(o.GetStreams()) > 0 {
		s.only = map[string]bool{}
		for _, st := range o.GetStreams() {
			s.only[map[swarmv1.LogStream]string{swarmv1.LogStream_LOG_STREAM_STDOUT: "stdout", swarmv1.LogStream_LOG_STREAM_STDERR: "stderr"}[st]] = true
		}
	}
	return s
}

func (s *subscription) wants(service, task string) bool {
	return matches(s.sel, s.p.o.Node, service, task)
}

// attach gives a subscription the session for sending; false if it has ended.
func (s *subscription) attach(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.base != nil && s.base.Err() != nil {
		return false
	}
	s.link = l
	if s.timer != nil {
		s.timer.Stop()
	}
	s.changed.Broadcast()
	return true
}

// detach takes it away again.
func (s *subscription) detach(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return
	}
	s.link = nil
	s.changed.Broadcast()
	if !s.follow {
		s.cancel() // its manager has given the node up
		return
	}
	s.timer = time.AfterFunc(parked, s.cancel)
}

// run serves the subscription until all is sent, or until ctx ends.
func (s *subscription) run(ctx context.Context) {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	s.base = ctx
	s.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.send(ctx)
		s.cancel()
	}()
	for _, o := range s.p.o.Source.Outputs(ctx, s.wants) {
		if s.begin(o, false); !s.follow {
			s.readers.Wait() // one after the other
		}
	}
	if !s.follow {
		s.finish()
	}
	<-sent
	s.mu.Lock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.readers.Wait()
}

func (s *subscription) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// finish says that nothing more comes.
func (s *subscription) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	s.changed.Broadcast()
}

// begin reads a container's output, once. A later container is read from its beginning.
func (s *subscription) begin(o Output, later bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.seen[o.Container]; seen || s.ended || s.base == nil || s.base.Err() != nil {
		return
	}
	log, ctx := o.name(), s.base
	s.seen[o.Container] = log
	start, known := s.at[log]
	l := &lines{s: s, o: o, skip: s.skip, start: start, begun: map[string]*swarmv1.LogMessage{}}
	from := s.from
	if later || s.resumed && !known {
		from.Tail = 0
	}
	if !known && s.follow {
		if s.at[log] = (position{}); from.Tail < 0 { // from now on, also by the next agent
			s.at[log] = position{At: time.Now()}
		}
		s.p.markChanged()
	}
	switch {
	case len(o.Sinks) == 0:
		if !known {
			s.note(o, "the output of this task is not kept: its log driver is none")
		}
	case !s.follow:
		s.readers.Go(func() {
			select {
			case s.p.reads <- struct{}{}:
				defer func() { <-s.p.reads }()
				s.read(ctx, l, from)
			case <-ctx.Done():
			}
		})
	default:
		select {
		case s.p.follows <- struct{}{}:
		default:
			s.p.o.Logger.Warn("could not follow the output of a task: too many are followed", "task", o.Task, "limit", maxFollowed)
			s.note(o, "the output of this task is not followed: its node follows too many")
			return
		}
		before, now := s.reading[log], &reading{ended: make(chan struct{})}
		s.reading[log] = now
		s.readers.Go(func() {
			defer func() {
				now.read = l.last
				close(now.ended)
				<-s.p.follows
			}()
			ended, stop := s.p.o.Source.Ended(ctx, o.Container)
			defer stop()
			from.Follow, from.Ended = true, ended
			if before != nil { // of the container that the task had before
				select {
				case <-before.ended:
					l.start, from.Tail = before.read, 0
				case <-ctx.Done():
					return
				}
			}
			s.read(ctx, l, from)
		})
	}
}

// drop forgets a container. Its log may be the next one's: those of tasks that are gone are
// forgotten when there are many.
func (s *subscription) drop(id core.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, id)
	if len(s.at) <= maxFollowed {
		return
	}
	used := map[string]bool{}
	for _, log := range s.seen {
		used[log] = true
	}
	gone := func(log string) bool { return !used[log] }
	maps.DeleteFunc(s.at, func(log string, _ position) bool { return gone(log) })
	maps.DeleteFunc(s.reading, func(log string, _ *reading) bool { return gone(log) })
}

// read reads a container's output and queues it.
func (s *subscription) read(ctx context.Context, l *lines, from logs.Options) {
	if !l.start.At.IsZero() {
		l.skip, from.Tail = 0, 0
		if l.start.At.After(from.Since) {
			from.Since = l.start.At
		}
	}
	err := logs.ReadWhole(ctx, l.o.Sinks, from, func(e logs.Entry) error { return l.add(ctx, e) })
	if err == nil {
		err = l.rest(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	s.p.o.Logger.WarnContext(ctx, "could not read the output of a task", "task", l.o.Task, "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(l.o, "the output of this task cannot be read; its node's agent has logged why")
}

// note queues a message of the node's own in place of missing output, because the protocol has no
// other way. Preconditions: mu is held.
func (s *subscription) note(o Output, text string) {
	if s.only != nil && !s.only["stderr"] || s.size >= maxPending {
		return
	}
	s.put(item{m: s.message(o, time.Now(), "stderr", []byte("longshore: "+text+"\n"))})
}

func (s *subscription) message(o Output, at time.Time, stream string, data []byte) *swarmv1.LogMessage {
	m := &swarmv1.LogMessage{
		Context: &swarmv1.LogContext{NodeId: s.p.o.Node, ServiceId: o.Service, TaskId: o.Task}, Timestamp: timestamppb.New(at), Data: data,
		Stream: swarmv1.LogStream_LOG_STREAM_STDOUT, Attrs: o.Attributes,
	}
	if stream == "stderr" {
		m.Stream = swarmv1.LogStream_LOG_STREAM_STDERR
	}
	return m
}

// overhead is the approximate size of a message beside its text, in bytes.
const overhead = 256

func cost(m *swarmv1.LogMessage) int {
	n := len(m.GetData()) + overhead
	for _, a := range m.GetAttrs() {
		n += len(a.GetKey()) + len(a.GetValue())
	}
	return n
}

// put adds a message. Preconditions: mu is held.
func (s *subscription) put(i item) {
	s.pending = append(s.pending, i)
	s.size += cost(i.m)
	s.changed.Broadcast()
}

// add waits until there is room and adds a message.
func (s *subscription) add(ctx context.Context, i item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.size >= maxPending && ctx.Err() == nil {
		s.changed.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.put(i)
	return nil
}

// sent forgets the first n messages.
func (s *subscription) sent(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.pending[:n] {
		s.size -= cost(i.m)
		if _, follows := s.at[i.log]; follows && !i.to.At.IsZero() {
			s.at[i.log] = i.to
		}
	}
	if s.follow {
		s.p.markChanged()
	}
	clear(s.pending[:n])
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.pending = nil
	}
	s.changed.Broadcast()
}

// again queues messages again, before the others.
func (s *subscription) again(list []item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range slices.Backward(list) {
		s.size += cost(i.m)
		if _, follows := s.at[i.log]; follows {
			s.at[i.log] = position{i.to.At, max(i.to.N-1, 0)}
		}
	}
	s.pending = append(list, s.pending...)
}

// lines makes lines of a container's entries.
type lines struct {
	s     *subscription
	o     Output
	skip  int64
	start position                       // where it begins
	last  position                       // how far it is
	begun map[string]*swarmv1.LogMessage // by stream: a line that is not whole yet
}

func (l *lines) add(ctx context.Context, e logs.Entry) error {
	if l.s.only != nil && !l.s.only[e.Stream] {
		return nil
	}
	m := l.begun[e.Stream]
	if m == nil {
		m = l.s.message(l.o, e.At, e.Stream, nil)
	}
	m.Data = append(m.Data, e.Text...)
	if e.Partial && len(m.GetData()) < maxLine {
		l.begun[e.Stream] = m
		return nil
	}
	delete(l.begun, e.Stream)
	if !e.Partial {
		m.Data = append(m.Data, '\n')
	}
	if l.skip > 0 {
		if !e.Partial {
			l.skip--
		}
		return nil
	}
	return l.put(ctx, m)
}

// put queues a message, unless an earlier reader has queued it.
func (l *lines) put(ctx context.Context, m *swarmv1.LogMessage) error {
	to := l.step(m)
	if l.again() {
		return nil
	}
	return l.s.add(ctx, item{m, l.o.name(), to})
}

// rest sends lines that were never ended.
func (l *lines) rest(ctx context.Context) error {
	for _, stream := range slices.Sorted(maps.Keys(l.begun)) {
		m := l.begun[stream]
		delete(l.begun, stream)
		if l.skip > 0 {
			continue
		}
		if err := l.put(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// The pauses between tries to open a stream in a session.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 8 * time.Second
)

// send sends pending messages by changing sessions, until all are sent or ctx ends.
func (s *subscription) send(ctx context.Context) {
	var out *outgoing
	defer func() {
		if err := out.finish(s.id); err != nil { // a manager that has disconnected knows it
			s.mu.Lock()
			s.unsure = true
			s.mu.Unlock()
		}
		out.drop()
	}()
	var rate bucket
	for pause := firstPause; ; {
		l, batch, last := s.next(ctx, out)
		if ctx.Err() != nil {
			return
		}
		if l == nil {
			_ = out.closeAndRecv() // with its session
			out.drop()
			out = nil
			continue
		}
		var err error
		if out == nil {
			out, err = open(ctx, l)
		}
		if err == nil {
			err = s.deliver(ctx, out, &rate, batch)
		}
		if err == nil && last {
			err = out.finish(s.id)
		}
		if err == nil {
			if pause = firstPause; last {
				out.drop()
				out = nil
				return
			}
			continue
		}
		kept := out.kept
		out.drop()
		out = nil
		switch status.Code(err) {
		case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented:
			if status.Code(err) != codes.NotFound { // it has ended meanwhile
				s.p.o.Logger.WarnContext(ctx, "a manager refused the output of tasks", "subscription", s.id, "error", err)
			}
			return
		default: // it may pass
		}
		sleep(ctx, l.ctx, pause)
		pause = min(2*pause, longestPause)
		if l.ctx.Err() == nil { // else the stream failed with its session
			s.again(kept)
		}
	}
}

// deliver sends messages and forgets them.
func (s *subscription) deliver(ctx context.Context, out *outgoing, rate *bucket, batch []item) error {
	if len(batch) == 0 {
		return nil
	}
	n := 0
	for _, i := range batch {
		n += len(i.m.GetData())
	}
	sleep(ctx, out.link.ctx, rate.take(n, time.Now()))
	if err := out.send(&swarmv1.PublishLogsMessage{SubscriptionId: s.id, Messages: messages(batch)}); err != nil {
		return err
	}
	out.keep(batch)
	s.sent(len(batch))
	return nil
}

// sleep waits, and less when one of the contexts ends.
func sleep(a, b context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-a.Done():
	case <-b.Done():
	case <-t.C:
	}
}

// next waits for work for send: a session with messages, or with the last of them (last), or none
// (nil) for a stream whose session is over. A session without a stream has one more in its count,
// which is the caller's.
func (s *subscription) next(ctx context.Context, out *outgoing) (l *link, batch []item, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		switch {
		case out != nil && out.link != s.link:
			return nil, nil, false
		case s.link != nil && (len(s.pending) > 0 || s.done):
			if out == nil {
				s.link.streams.Add(1)
			}
			return s.link, s.pending, s.done
		}
		s.changed.Wait()
	}
	return nil, nil, false
}
