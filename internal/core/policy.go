package core

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Policy checks callers' operations on sandboxes, containers and processes, for all owners and
// faces, and may refuse or adjust them. NRI plugins, CDI devices and the node's own restrictions
// are policies.
//
// The engine asks its policies one after the other, in a fixed order (see engine.Options). Each
// sees a spec as those before it have changed it, so the last one has the last word. The first
// error ends the verb, and its finished stages are undone. The error carries a class,
// PermissionDenied for a plain refusal. Its text does not name the object, because the engine
// adds that.
//
// Embed Permit to implement only some of the methods.
type Policy interface {
	// AdmitSandbox is called with a complete sandbox before any caller can see it. The engine holds
	// the sandbox's lock.
	AdmitSandbox(ctx context.Context, sb *Sandbox) error
	// AdjustContainer changes a container's spec before the runtime gets it, and may add to the
	// container's Warnings. The engine holds the sandbox's lock.
	AdjustContainer(ctx context.Context, sb *Sandbox, c *Container, spec *specs.Spec) error
	// AdjustProcess changes a further process of a running container before the runtime gets it,
	// and the main process of a container that starts again. The engine holds that process's lock,
	// and for a main process the sandbox's.
	AdjustProcess(ctx context.Context, sb *Sandbox, c *Container, p *specs.Process) error
	// Before is called before a verb begins, also if the verb will find nothing to do. The engine
	// holds no lock, so Before may call verbs itself, which call the policies too. The function
	// after, unless it is nil, is called once with the verb's result. It can no longer make the
	// verb fail, no lock is held, and ctx may have ended. The afters run in reverse order of the
	// policies. after is not called when err is not nil.
	//
	// Stops, kills and removals cannot be refused: an error for VerbStop, VerbKill or VerbRemove is only logged.
	Before(ctx context.Context, op *Operation) (after func(error), err error)
}

// Operation is one verb on one object.
//
// A verb that consists of others is several operations. Removing a sandbox stops each of its
// containers, stops the sandbox, removes each container, and then removes the sandbox. So Before is
// called for the stop of a sandbox when its containers have ended, and for a removal when the
// object has ended. A create that starts the program at once (ContainerConfig.Run) is not also a
// start. Recovery calls no policy: it completes operations that policies allowed before the crash.
type Operation struct {
	// Verb is one of VerbCreate, VerbStart, VerbExec, VerbUpdate, VerbPause, VerbResume, VerbSleep, VerbWake, VerbCheckpoint,
	// VerbRestore, VerbStop, VerbRemove, VerbKill, VerbAttach and VerbForward.
	Verb Verb
	// Detail describes the verb to people: a signal, a port, a path. It may be empty.
	Detail string
	// Sandbox is set for a verb on a sandbox, Container for a verb on a container or on a process
	// of one; the other is nil. They are as they were when the verb began. An object to be
	// created has its ID and its config, and is complete when the verb has ended. Policies must
	// not change them.
	Sandbox   *Sandbox
	Container *Container
	// Process is the process that an exec will start.
	Process ProcessID
	// Resources are the limits that an update will set. A policy may replace the pointer, and
	// must not change the value that it points to.
	Resources *specs.LinuxResources
	// Part reports whether the verb is a part of a removal, which follows.
	Part bool
}

// Owner returns the owner of the object.
func (op *Operation) Owner() Owner {
	if op.Sandbox != nil {
		return op.Sandbox.Owner
	}
	return op.Container.Owner
}

// Permit is a Policy that allows everything and changes nothing.
type Permit struct{}

var _ Policy = Permit{}

// AdmitSandbox implements Policy; it allows the sandbox.
func (Permit) AdmitSandbox(context.Context, *Sandbox) error { return nil }

// AdjustContainer implements Policy; it changes nothing.
func (Permit) AdjustContainer(context.Context, *Sandbox, *Container, *specs.Spec) error { return nil }

// AdjustProcess implements Policy; it changes nothing.
func (Permit) AdjustProcess(context.Context, *Sandbox, *Container, *specs.Process) error { return nil }

// Before implements Policy; it allows the operation.
func (Permit) Before(context.Context, *Operation) (after func(error), err error) { return nil, nil }
