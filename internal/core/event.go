package core

import "time"

// EventKind is the kind of an event.
type EventKind string

// The kinds of events. The events of an object come in the order of its states, and none follows
// its removal.
const (
	EventSandboxCreating   EventKind = "sandbox.creating"
	EventSandboxReady      EventKind = "sandbox.ready"
	EventSandboxStopped    EventKind = "sandbox.stopped"
	EventSandboxRemoved    EventKind = "sandbox.removed"
	EventContainerCreating EventKind = "container.creating"
	EventContainerCreated  EventKind = "container.created"
	EventContainerStarted  EventKind = "container.started"
	EventContainerPaused   EventKind = "container.paused"
	EventContainerResumed  EventKind = "container.resumed"
	EventContainerAsleep   EventKind = "container.asleep"       // Note says how much memory it gave back
	EventContainerWoken    EventKind = "container.woken"        // Note says why
	EventContainerStored   EventKind = "container.checkpointed" // Note says how large its checkpoint is
	EventContainerUpdated  EventKind = "container.updated"
	EventContainerHealth   EventKind = "container.health" // its health checks have another result; Note begins with it
	EventContainerExited   EventKind = "container.exited" // exactly one per started main process
	EventContainerRemoved  EventKind = "container.removed"
	EventSandboxReturned   EventKind = "sandbox.returned" // it has outlived a boot of the node; it is stopped
	EventContainerReturned EventKind = "container.returned"
	EventProcessStarted    EventKind = "process.started" // of an exec
	EventProcessExited     EventKind = "process.exited"
	EventImagePulled       EventKind = "image.pulled"
	EventImageRemoved      EventKind = "image.removed"
	EventForced            EventKind = "forced" // a caller changed another owner's object; Note names both
	EventAgent             EventKind = "agent"  // the agent started or stopped, recovered, or lost or found its keeper or nest; or an owner's face asks the administrator to act
)

// NoteRenewed is the note of an EventContainerCreated that follows the container's end: it is ready to be
// started again.
const NoteRenewed = "ready to start again"

// Event is one entry of the log.
type Event struct {
	Seq       uint64    `json:"seq"` // 1, 2, 3, … without a gap, kept across restarts
	At        time.Time `json:"at"`
	Kind      EventKind `json:"kind"`
	Owner     Owner     `json:"owner,omitempty"` // of the object
	Key       Key       `json:"key,omitempty"`
	Sandbox   ID        `json:"sandbox,omitempty"`
	Container ID        `json:"container,omitempty"`
	Process   ProcessID `json:"process,omitempty"`
	Autopsy   *Autopsy  `json:"autopsy,omitempty"`
	Note      string    `json:"note,omitempty"`
}

// Filter selects objects and events. Every field that is set must match. The zero Filter matches
// all that the Client may see.
type Filter struct {
	Owner     Owner // honored in the unscoped view only
	Sandbox   ID
	Container ID
	Kinds     []EventKind
	Labels    map[string]string // all must be equal
}

// MatchLabels reports whether labels hold every pair of f.Labels.
func (f Filter) MatchLabels(labels map[string]string) bool {
	for k, v := range f.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
