package events

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// RestartCall is the Call of the request that stops a container for its restart. Such an end has the event stop, as if a client
// had stopped it.
const RestartCall = "docker restart"

const (
	// replayed is the number of the last events of the engine's log that a new agent reads for the clients that ask for the past.
	replayed = 4096
	// dieDelay bounds the time between the end of a container and the event die, which waits for the release of the sandbox. The
	// engine keeps a sandbox while other sandboxes use its network.
	dieDelay = time.Second
	// maxRemoved bounds the removed containers that are kept for late events.
	maxRemoved = 64
)

// container is the part of a container's record that its events need.
type container struct {
	name, image string
	labels      map[string]string
	sandbox     core.ID
	foreign     bool // it belongs to another owner
	created     bool // its event create was published
	started     time.Time
	networks    []Endpoint
	volumes     []core.VolumeMount
	killed      bool // its event kill with SIGKILL was published since its start
	// die publishes the end of its program, until it was called; nil when nothing waits.
	die   func()
	timer *time.Timer
}

// catchUp publishes the events of the engine's log that were not read yet. It does not wait for new ones. So an event that a
// handler publishes follows those of the work that it has done.
//
// Preconditions: mu is held.
func (s *Server) catchUp() {
	first := !s.ready
	if first {
		s.ready, s.containers = true, map[core.ID]*container{}
		if last, err := s.Engine.LastSeq(context.Background()); err == nil && last > replayed {
			s.since = last - replayed
		}
	}
	list, last, err := s.Engine.Stored.Events(s.since)
	if err != nil { // some were trimmed before they were read
		s.Logger.Warn("could not read the event log; events of containers are lost", "error", err)
	}
	s.since = max(s.since, last)
	for _, e := range list {
		s.derive(&e)
	}
	if first {
		s.settle()
	}
}

// settle publishes the events that wait for a release.
//
// Preconditions: mu is held.
func (s *Server) settle() {
	for _, c := range s.containers {
		c.settle()
	}
}

func (c *container) settle() {
	if c.die != nil {
		c.timer.Stop()
		c.die()
		c.die = nil
	}
}

// container returns a container, with its present name and labels if it has a record.
//
// Preconditions: mu is held.
func (s *Server) container(id core.ID) *container {
	c := s.containers[id]
	rec, err := s.Engine.Container(context.Background(), id)
	if c == nil {
		if c = (&container{}); err == nil {
			s.containers[id] = c
			c.started = rec.Main.Started
		}
	}
	if err == nil {
		c.sandbox, c.volumes, c.created = rec.Sandbox, rec.Config.Volumes, c.created || rec.State != core.ContainerCreating
		if c.foreign = rec.Owner != core.OwnerDocker; c.foreign {
			c.volumes = nil
		}
	}
	if name, image, labels := s.Describe(id); name != "" {
		c.name, c.image, c.labels = name, image, labels
	}
	return c
}

// derive publishes the events that follow from one of the engine's.
//
// Preconditions: mu is held.
func (s *Server) derive(e *core.Event) {
	if e.Kind == core.EventSandboxStopped {
		for _, c := range s.containers {
			if c.sandbox == e.Sandbox {
				c.settle()
			}
		}
	}
	if e.Container == "" || e.Process != core.Main || e.Owner != core.OwnerDocker && !slices.Contains(s.Shown, e.Owner) {
		return
	}
	c := s.container(e.Container)
	s.containers[e.Container] = c
	if c.name == "" {
		c.name = string(e.Key)
	}
	say := func(action string, more map[string]string) {
		s.log.add(e.At, Container, action, string(e.Container), c.attributes(more))
	}
	switch e.Kind {
	case core.EventContainerCreated:
		c.settle()
		c.created, c.started = true, time.Time{}
		if e.Note != core.NoteRenewed {
			s.volumesOf(c, e)
			say("create", nil)
		}
	case core.EventContainerStarted:
		c.settle()
		s.begin(c, e)
		say("start", nil)
	case core.EventContainerPaused:
		say("pause", nil)
	case core.EventContainerResumed:
		say("unpause", nil)
	case core.EventContainerHealth:
		if status, _, _ := strings.Cut(e.Note, ":"); status != "starting" {
			say("health_status: "+status, nil)
		}
	case core.EventContainerExited:
		s.ended(c, e, say)
	case core.EventContainerRemoved:
		c.settle()
		if c.created {
			say("destroy", nil)
		}
		s.forget(e.Container)
	}
}

// volumesOf publishes the volumes that the create of a container has made.
func (s *Server) volumesOf(c *container, e *core.Event) {
	rec, err := s.Engine.Container(context.Background(), e.Container)
	if err != nil || len(c.volumes) == 0 {
		return
	}
	all, err := s.Engine.Volumes.List(context.Background())
	if err != nil {
		s.Logger.Warn("could not list the volumes; events of new ones are lost", "error", err)
	}
	for _, v := range all {
		used := slices.ContainsFunc(c.volumes, func(m core.VolumeMount) bool { return m.Name == v.Name })
		if used && !v.Created.Before(rec.Created) && !v.Created.After(e.At) {
			s.log.add(e.At, Volume, "create", v.Name, map[string]string{"driver": "local"})
		}
	}
}

// begin publishes the mounts and connections of a container that was started.
func (s *Server) begin(c *container, e *core.Event) {
	c.started, c.killed = e.At, false
	for _, v := range c.volumes {
		s.log.add(e.At, Volume, "mount", v.Name, map[string]string{
			"container": string(e.Container), "destination": v.Target, "driver": "local", "propagation": "", "read/write": strconv.FormatBool(!v.ReadOnly),
		})
	}
	c.networks = s.endpoints(e.Container)
	for _, n := range c.networks {
		s.log.add(e.At, Network, "connect", n.ID, map[string]string{"container": string(e.Container), "name": n.Name, "type": n.Driver})
	}
}

func (s *Server) endpoints(id core.ID) []Endpoint {
	if s.Endpoints == nil {
		return nil
	}
	return s.Endpoints(id)
}

// ended publishes the end of a container's program when its network, ports and volumes are released, because clients start the
// next container then. A program that never ran has no end.
//
// Preconditions: mu is held.
func (s *Server) ended(c *container, e *core.Event, say func(string, map[string]string)) {
	if c.started.IsZero() || e.Autopsy == nil {
		return
	}
	if e.Autopsy.OOM != nil {
		say("oom", nil)
	}
	req := e.Autopsy.StopRequest
	if req != nil && req.Stop && e.Autopsy.Exit.Signal == int(unix.SIGKILL) && !c.killed {
		say("kill", map[string]string{"signal": strconv.Itoa(int(unix.SIGKILL))}) // its grace period was over
	}
	ran := max(0, int(e.Autopsy.Exit.At.Sub(c.started).Seconds())) // e.At is later if no agent ran at its end
	attributes := map[string]string{"exitCode": strconv.Itoa(e.Autopsy.Exit.Status()), "execDuration": strconv.Itoa(ran)}
	networks, volumes := c.networks, c.volumes
	if now := s.endpoints(e.Container); len(now) > 0 { // some may have been connected or disconnected since the start
		networks = now
	}
	c.started, c.networks = time.Time{}, nil
	id, at := string(e.Container), e.At
	c.die = func() {
		for _, n := range networks {
			s.log.add(at, Network, "disconnect", n.ID, map[string]string{"container": id, "name": n.Name, "type": n.Driver})
		}
		for _, v := range volumes {
			s.log.add(at, Volume, "unmount", v.Name, map[string]string{"container": id, "driver": "local"})
		}
		say("die", attributes)
		if req != nil && req.Call == RestartCall {
			say("stop", nil)
		}
	}
	if c.foreign { // its sandbox may stay for the next container
		c.die()
		c.die = nil
		return
	}
	c.timer = time.AfterFunc(dieDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.settle()
	})
}

// forget drops a removed container some time after its removal.
//
// Preconditions: mu is held.
func (s *Server) forget(id core.ID) {
	s.removed = append(s.removed, id)
	if len(s.removed) > maxRemoved {
		delete(s.containers, s.removed[0])
		s.removed = append(s.removed[:0], s.removed[1:]...)
	}
}
