// Package events has the events of the Docker face: GET /events, and the log of events behind it.
//
// A Server derives the events of a container's life from the engine's event log, so that restart policies and other clients cause
// the same ones as requests: create, start, pause, unpause, oom, die, destroy, health_status, the mounts of volumes and the
// connections of networks. The handlers of requests publish all others, such as kill and rename. Start at Server.
package events

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Endpoint is a network that a container is connected to.
type Endpoint struct {
	ID, Name string
	Driver   string
}

// Server has the events of the owner docker's objects, and of the containers of others. Engine, Describe and Logger are required. Run must run.
type Server struct {
	Engine *engine.Client
	// Shown are further owners. The events of their containers are sent, not those of their networks and volumes. Engine must see
	// their containers.
	Shown []core.Owner
	// Describe returns the attributes of a container's events: its name without a slash, the name of its image as the create
	// request has it, and its labels. The name of one that it does not know is "". It must not call the Server.
	Describe func(core.ID) (name, image string, labels map[string]string)
	// Endpoints returns the networks of a container that was started; nil returns none. It must not call the Server.
	Endpoints func(core.ID) []Endpoint
	Logger    *slog.Logger
	// HidesEnv reports whether a client must not see environments, which the commands of execs can have too; nil is no client.
	HidesEnv func(ctx context.Context) bool

	log log

	mu         sync.Mutex // guards ready, since, containers, removed
	ready      bool       // since is set
	since      uint64     // the last event of the engine's log that was read
	containers map[core.ID]*container
	removed    []core.ID // of containers, oldest first
}

// Routes adds the handlers.
func (s *Server) Routes(m *dockerhttp.Mux) { m.Handle("GET", "/events", s.events) }

// Publish adds an event of an object. Those of a container get its name, image and labels.
func (s *Server) Publish(typ, action, id string, attributes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	if typ == Container {
		c := s.container(core.ID(id))
		c.killed = c.killed || action == "kill" && attributes["signal"] == "9"
		attributes = c.attributes(attributes)
	}
	s.log.add(time.Now(), typ, action, id, attributes)
}

// Readers returns the number of clients that read events.
func (s *Server) Readers() int { return s.log.count() }

// Run follows the engine's event log until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	read := func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.catchUp()
		return nil
	}
	return engine.Watch{
		List:  read,
		Event: func(ctx context.Context, _ core.Event) error { return read(ctx) },
		Failed: func(err error) {
			s.Logger.WarnContext(ctx, "could not follow the event log, so Docker's clients get no events of containers; will try again", "error", err)
		},
	}.Run(ctx, s.Engine)
}

// events sends the events that the filters select: those kept since a time, and new ones until another time or the client's
// end.
func (s *Server) events(w http.ResponseWriter, r *dockerhttp.Request) error {
	since, err := dockerhttp.Moment("since", r.Get("since"))
	if err != nil {
		return err
	}
	until, err := dockerhttp.Moment("until", r.Get("until"))
	if err != nil {
		return err
	}
	if !until.IsZero() && until.Before(since) {
		return invalid.Plainf("`since` time (%s) cannot be after `until` time (%s)", r.Get("since"), r.Get("until"))
	}
	f, err := dockerhttp.ParseAnyFilters(r.Get("filters"))
	if err != nil {
		return err
	}
	left := time.Until(until)
	s.mu.Lock()
	s.catchUp()
	if !until.IsZero() && left <= 0 {
		s.settle()
	}
	s.mu.Unlock()
	// The write of a client that does not read ends at once when its queue is full.
	cut := func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) }
	from := s.log.read(since, until, cut)
	defer s.log.leave(from)
	stream := dockerhttp.NewStream(w)
	if err := stream.Start(); err != nil {
		return err
	}
	hides := s.HidesEnv != nil && s.HidesEnv(r.Context())
	send := func(e *entry) error {
		if hides && e.short != nil {
			e = e.short
		}
		if !selects(f, &e.Event) || e.Type == Image && e.Action == "create" && r.API.Before("1.46") {
			return nil
		}
		return stream.SendDocument(e.doc)
	}
	var end <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(max(0, left))
		defer timer.Stop()
		end = timer.C
	}
	for past := from.past; past > 0 || end == nil || left > 0; past-- {
		e := s.log.next(from, r.Context().Done(), end, past > 0)
		if e == nil || send(e) != nil {
			break
		}
		s.log.sent(from)
	}
	if s.log.lost(from) {
		panic(http.ErrAbortHandler) // the client must not take a part for all
	}
	return nil
}

// attributes returns the attributes of an event of a container, with those of the event itself.
func (c *container) attributes(more map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, c.labels)
	all["image"], all["name"] = c.image, c.name
	maps.Copy(all, more)
	return all
}
