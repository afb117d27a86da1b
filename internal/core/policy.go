package core

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Policy is asked about what callers do to sandboxes, containers and processes,
// of whatever owner and through whatever face, and may refuse or adjust it:
// plugins, devices by name, what this node may give.
//
// The engine asks its policies one after the other, in a fixed order (see
// engine.Options), so that each sees what those before it have made of a spec, and
// the last one has the last word. The first error ends the verb, and what was made
// until then is undone. It carries a class, PermissionDenied for a plain no, and
// its text names no object: who gets it is told which one.
//
// Embed Permit to implement a part of it.
type Policy interface {
	// AdmitSandbox is asked about a sandbox when all of it is made and nobody can
	// see it yet. The engine holds the sandbox's lock.
	AdmitSandbox(ctx context.Context, sb *Sandbox) error
	// AdjustContainer changes a container's spec on its way to the runtime, and may
	// add to the container's Warnings. The engine holds the sandbox's lock.
	AdjustContainer(ctx context.Context, sb *Sandbox, c *Container, spec *specs.Spec) error
	// AdjustProcess changes a further process of a running container on its way to
	// the runtime. The engine holds no lock but that process's.
	AdjustProcess(ctx context.Context, sb *Sandbox, c *Container, p *specs.Process) error
	// Before is asked before a verb begins, even one that will find nothing to do.
	// The engine holds no lock, so it may itself call verbs, about which it is asked
	// like everybody. After, unless it is nil, is called once with the verb's end: it
	// can fail nothing any more, no lock is held again, and ctx may have ended. The
	// last policy that was asked is the first to be told. It is not called when err
	// is not nil.
	//
	// An end cannot be refused: an error for VerbStop and VerbRemove is logged.
	Before(ctx context.Context, op *Operation) (after func(error), err error)
}

// Operation is one verb on one object.
//
// Verbs that consist of others are those too: to remove a sandbox is to stop each
// of its containers, to stop it, to remove each container, and then to remove it.
// So a policy is asked about the stop of a sandbox when its containers have ended,
// and about a removal when what goes has ended. A create that lets the program run
// at once (ContainerConfig.Run) is no start. What recovery puts right after a
// crash has been asked about before.
type Operation struct {
	// Verb is one of VerbCreate, VerbStart, VerbExec, VerbUpdate, VerbPause,
	// VerbResume, VerbStop and VerbRemove.
	Verb Verb
	// Sandbox is what a verb on a sandbox is about, Container what one on a container
	// or a process of it is about; the other one is nil. They are as they were when
	// the verb began. What is to be created has its ID and what was asked for, and is
	// as it was made when the verb has ended. Nobody may change them.
	Sandbox   *Sandbox
	Container *Container
	// Process is what an exec will start.
	Process ProcessID
	// Resources are the limits that an update is to set. A policy may put others in
	// their place, and must not change what it finds there.
	Resources *specs.LinuxResources
}

// Owner is the owner of the object.
func (op *Operation) Owner() Owner {
	if op.Sandbox != nil {
		return op.Sandbox.Owner
	}
	return op.Container.Owner
}

// Permit is a Policy that allows all and changes nothing.
type Permit struct{}

var _ Policy = Permit{}

// AdmitSandbox admits it.
func (Permit) AdmitSandbox(context.Context, *Sandbox) error { return nil }

// AdjustContainer leaves it as it is.
func (Permit) AdjustContainer(context.Context, *Sandbox, *Container, *specs.Spec) error { return nil }

// AdjustProcess leaves it as it is.
func (Permit) AdjustProcess(context.Context, *Sandbox, *Container, *specs.Process) error { return nil }

// Before allows it and is not told of its end.
func (Permit) Before(context.Context, *Operation) (after func(error), err error) { return nil, nil }
