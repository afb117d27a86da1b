// Package publish sends the output of a node's tasks to the managers of its Swarm, as far
// as their users ask for it.
//
// A manager subscribes for tasks; what they have written, and with follow what they
// write, goes to it by a stream of its own for each subscription. A slow manager makes a
// subscription wait, never a task. It must not know the engine. Start at
// Publisher.Listen.
package publish

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

// Output is that of one container of a task.
type Output struct {
	Service, Task string
	Container     core.ID
	Sinks         []core.Sink        // none: the output is not kept
	Attributes    []*swarmv1.LogAttr // of each line; they are not changed
}

// Source has the output of the node's tasks. Its methods are called by several
// goroutines.
type Source interface {
	// Outputs returns the outputs of started containers of the tasks that match selects.
	Outputs(ctx context.Context, match func(service, task string) bool) []Output
	// Ended returns a channel that is closed when a container has ended and its output is
	// in its sinks, or when it is gone. The function gives up; it must be called.
	Ended(ctx context.Context, id core.ID) (<-chan struct{}, func())
}

// Options are the parameters of New; Node, Source and Logger are required.
type Options struct {
	Node   string // the node's id
	Source Source
	Logger *slog.Logger
	// File is where it is kept how far output was sent, for the next agent; "" keeps nothing.
	File string
}

// The bounds of a node's work for subscribers.
const (
	maxSubscriptions = 1024
	maxFollowed      = 1024             // logs that are followed at once, of all subscriptions
	maxReading       = 16               // logs that are read to their present end at once
	maxPending       = 32 << 10         // bytes of a subscription that are not sent yet
	maxLine          = 32 << 10         // a longer line is sent in pieces
	maxRate          = 10 << 20         // bytes each second of a subscription: managers buffer output for slow clients
	parked           = 10 * time.Minute // how long a subscription waits for another session
	linger           = time.Second      // for a manager to take the rest of a stream that ends
	refuseTimeout    = 5 * time.Second
)

// Publisher serves the subscriptions of managers.
type Publisher struct {
	o       Options
	follows chan struct{} // has a place for each log that is followed
	reads   chan struct{}
	running sync.WaitGroup // subscriptions, and keep
	moved   chan struct{}  // positions have changed

	mu   sync.Mutex // guards subs, kept, base
	subs map[string]*subscription
	kept kept
	base context.Context //nolint:containedctx // that of Begin, which ends all subscriptions
}

// New returns a publisher; it does nothing before Begin.
func New(o Options) *Publisher {
	return &Publisher{o: o, follows: make(chan struct{}, maxFollowed), reads: make(chan struct{}, maxReading), moved: make(chan struct{}, 1), subs: map[string]*subscription{}}
}

// Begin lets subscriptions be served until ctx ends.
func (p *Publisher) Begin(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.kept, err = readKept(p.o.File); err != nil {
		p.o.Logger.WarnContext(ctx, "could not read the positions of sent output; output is sent again", "error", err)
	}
	p.base = ctx
	p.running.Go(func() { p.keep(ctx) })
}

// Wait returns when nothing is done any more; the context of Begin must have ended, and
// Listen have returned.
func (p *Publisher) Wait() {
	p.running.Wait()
	p.writeLast()
}

// link is a session with a manager.
type link struct {
	ctx     context.Context //nolint:containedctx // it ends with the session
	api     swarmv1.LogBrokerClient
	streams sync.WaitGroup
}

// Listen serves the subscriptions of a session until ctx ends; an error of the manager's ends the
// session. Subscriptions that follow outlive it: they continue at their position when a manager
// names them again.
func (p *Publisher) Listen(ctx context.Context, api swarmv1.LogBrokerClient) error {
	stream, err := api.ListenSubscriptions(ctx, &swarmv1.ListenSubscriptionsRequest{})
	if err != nil {
		return err
	}
	linked, cancel := context.WithCancel(ctx)
	l := &link{ctx: linked, api: api}
	defer func() {
		p.unlink(l)
		cancel()
		l.streams.Wait()
	}()
	for {
		m, err := stream.Recv()
		if status.Code(err) == codes.Unimplemented {
			p.o.Logger.WarnContext(ctx, "the swarm's managers do not support the output of tasks")
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if !p.subscribe(l, m) {
			p.refuse(ctx, api, m.GetId())
		}
	}
}

// refuse ends a subscription that is not served, so that nobody waits for it.
func (p *Publisher) refuse(ctx context.Context, api swarmv1.LogBrokerClient, id string) {
	p.o.Logger.WarnContext(ctx, "refused a subscription to output: there are too many", "subscription", id, "limit", maxSubscriptions)
	ctx, cancel := context.WithTimeout(ctx, refuseTimeout)
	defer cancel()
	stream, err := api.PublishLogs(ctx)
	if err == nil {
		err = stream.Send(&swarmv1.PublishLogsMessage{SubscriptionId: id, Close: true})
	}
	if err == nil {
		_, _ = stream.CloseAndRecv() // the answer says nothing
	}
}

// unlink has subscriptions wait for the next session, and ends those that nobody will
// ask for again.
func (p *Publisher) unlink(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		s.detach(l)
	}
}

// subscribe opens a subscription or closes it; false when there are too many.
func (p *Publisher) subscribe(l *link, m *swarmv1.SubscriptionMessage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := m.GetId()
	s := p.subs[id]
	switch {
	case id == "" || p.base == nil || p.base.Err() != nil:
	case m.GetClose():
		if s != nil {
			s.cancel()
		}
	case s != nil && s.attach(l):
	case len(p.subs) >= maxSubscriptions:
		return false
	default:
		ctx, cancel := context.WithCancel(p.base)
		s := newSubscription(p, m, cancel)
		if at, ok := p.kept.earlier[id]; ok && s.follow {
			s.at, s.resumed = maps.Clone(at), true
			delete(p.kept.earlier, id)
		}
		s.attach(l)
		p.subs[id] = s
		p.running.Go(func() {
			defer p.forget(s)
			defer cancel()
			s.run(ctx)
		})
	}
	return true
}

// forget forgets a subscription that is over. One that ended with the agent is not: how far it
// was is kept.
func (p *Publisher) forget(s *subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs[s.id] == s && p.base.Err() == nil {
		delete(p.subs, s.id)
		p.markChanged()
	}
}

// Started starts reading the output of a new container for its task's followers.
func (p *Publisher) Started(o Output) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		if s.follow && s.wants(o.Service, o.Task) {
			s.begin(o, true)
		}
	}
}

// Removed forgets a container.
func (p *Publisher) Removed(id core.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		s.drop(id)
	}
}

// matches reports whether a subscription is for a task of the node's.
func matches(sel *swarmv1.LogSelector, node, service, task string) bool {
	return slices.Contains(sel.GetTaskIds(), task) || slices.Contains(sel.GetServiceIds(), service) || slices.Contains(sel.GetNodeIds(), node)
}

// bucket says how long to wait so that no more than a rate is sent.
type bucket struct {
	left float64 // bytes that may be sent at once; below 0 is owed
	at   time.Time
}

// take spends n bytes.
func (b *bucket) take(n int, now time.Time) time.Duration {
	if b.at.IsZero() {
		b.left = maxRate
	} else {
		b.left = min(maxRate, b.left+now.Sub(b.at).Seconds()*maxRate)
	}
	b.at = now
	if b.left -= float64(n); b.left >= 0 {
		return 0
	}
	return time.Duration(-b.left / maxRate * float64(time.Second))
}
