// Package assignment follows a manager's assignments to a node: tasks, secrets and configs.
//
// It is pure. It must not know the work on a task. Start at Set.
package assignment

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// ErrGap is the error of a message that does not follow the one before it. The stream has to be
// opened again, and then begins with everything. Its class is OutOfRange.
var ErrGap = fmt.Errorf("assignments do not follow those before them: %w", errdefs.ErrOutOfRange)

// Set has the assignments of a node. The zero Set is empty and not known to be complete.
type Set struct {
	known     bool // since the first complete message
	open      bool // the reference is that of the stream being read
	reference string
	tasks     map[string]bool
	secrets   map[string]*swarmv1.Secret
	configs   map[string]*swarmv1.Config
}

// Change is the effect of one message on the node's tasks. The Set has their secrets and configs
// already.
type Change struct {
	Tasks   []*swarmv1.Task // new ones, and those that are wanted otherwise
	Removed []string        // no longer the node's
	// Volumes are cluster volumes that the node is to have, VolumesRemoved those that
	// the managers want back: both have all that a driver needs to know.
	Volumes, VolumesRemoved []*swarmv1.VolumeAssignment
	// Complete says that objects that are not named are no longer the node's. For volumes it means
	// that the managers do not wait for their removal.
	Complete bool
	// Ignored has an error for each ignored part of the message.
	Ignored []error
}

// Resume tells the set of tasks that the node had before it was started.
func (s *Set) Resume(tasks ...string) {
	s.init()
	for _, id := range tasks {
		s.tasks[id] = true
	}
}

func (s *Set) init() {
	if s.tasks == nil {
		s.tasks, s.secrets, s.configs = map[string]bool{}, map[string]*swarmv1.Secret{}, map[string]*swarmv1.Config{}
	}
}

// Known reports whether a manager has sent the complete list, so that missing objects will not
// come.
func (s *Set) Known() bool { return s.known }

// Opened says that the next message is the first one of a stream.
func (s *Set) Opened() { s.open, s.reference = false, "" }

// Apply takes in the next message of a stream. ErrGap leaves the set as it was.
func (s *Set) Apply(m *swarmv1.AssignmentsMessage) (Change, error) {
	s.init()
	complete := m.GetType() == swarmv1.AssignmentsMessage_COMPLETE
	if !complete && (!s.open || m.GetAppliesTo() != s.reference) {
		return Change{}, ErrGap
	}
	s.open, s.reference = true, m.GetResultsIn()
	if complete {
		clear(s.secrets)
		clear(s.configs)
		s.known = true
	}
	// Removals first: a thing may be replaced in one message, in any order.
	c, had := Change{Complete: complete}, map[string]bool{}
	for _, ch := range m.GetChanges() {
		if ch.GetAction() == swarmv1.AssignmentChange_REMOVE {
			s.remove(&c, ch.GetAssignment(), complete)
		}
	}
	for _, ch := range m.GetChanges() {
		if ch.GetAction() == swarmv1.AssignmentChange_UPDATE {
			s.update(&c, ch.GetAssignment(), had)
		}
	}
	if complete {
		for id := range s.tasks {
			if !had[id] {
				delete(s.tasks, id)
				c.Removed = append(c.Removed, id)
			}
		}
	}
	return c, nil
}

// OfTasks returns a message of the stream that was before assignments as one of assignments: all of the
// node's tasks, and none of the objects that they need.
func OfTasks(m *swarmv1.TasksMessage) *swarmv1.AssignmentsMessage {
	all := &swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_COMPLETE}
	for _, t := range m.GetTasks() {
		all.Changes = append(all.Changes, &swarmv1.AssignmentChange{
			Assignment: &swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: t}}, Action: swarmv1.AssignmentChange_UPDATE,
		})
	}
	return all
}

// remove takes something away. A complete message has no need to, but for volumes.
func (s *Set) remove(c *Change, a *swarmv1.Assignment, complete bool) {
	if item, ok := a.GetItem().(*swarmv1.Assignment_Volume); ok {
		c.VolumesRemoved = append(c.VolumesRemoved, item.Volume)
	}
	if complete {
		return
	}
	switch item := a.GetItem().(type) {
	case *swarmv1.Assignment_Task:
		if id := item.Task.GetId(); s.tasks[id] {
			delete(s.tasks, id)
			c.Removed = append(c.Removed, id)
		}
	case *swarmv1.Assignment_Secret:
		delete(s.secrets, item.Secret.GetId())
	case *swarmv1.Assignment_Config:
		delete(s.configs, item.Config.GetId())
	}
}

func (s *Set) update(c *Change, a *swarmv1.Assignment, had map[string]bool) {
	switch item := a.GetItem().(type) {
	case *swarmv1.Assignment_Task:
		id := item.Task.GetId()
		if id == "" || had[id] {
			c.Ignored = append(c.Ignored, fmt.Errorf("a task without an id, or twice in one message (%q): %w", id, errdefs.ErrInvalidArgument))
			return
		}
		had[id], s.tasks[id] = true, true
		c.Tasks = append(c.Tasks, item.Task)
	case *swarmv1.Assignment_Secret:
		s.secrets[item.Secret.GetId()] = item.Secret
	case *swarmv1.Assignment_Config:
		s.configs[item.Config.GetId()] = item.Config
	case *swarmv1.Assignment_Volume:
		c.Volumes = append(c.Volumes, item.Volume)
	default:
		c.Ignored = append(c.Ignored, errors.New("an assignment of nothing that this version knows"))
	}
}

// Secret finds a secret that a task refers to. One that its driver makes for each task has an id
// with the task's in it.
func (s *Set) Secret(id, task string) *swarmv1.Secret {
	if own := s.secrets[id+"."+task]; own != nil {
		return own
	}
	return s.secrets[id]
}

// Config finds a config that a task refers to.
func (s *Set) Config(id string) *swarmv1.Config { return s.configs[id] }
