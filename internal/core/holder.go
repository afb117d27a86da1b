package core

import (
	"context"
	"os"
)

// Holder keeps open files beyond the end of the agent, and of whoever uses them: what arrives at a
// socket meanwhile waits there. The keeper is one; its parent has them too, so that they outlive both.
//
// Whoever holds something drops it when it is not needed any more: a socket keeps its network
// namespace.
type Holder interface {
	// Hold keeps files under a name, in place of what was kept under it. They stay the caller's, too.
	// InvalidArgument for no file, more than four, or a name that is empty or longer than 255
	// bytes; ResourceExhausted when too much is held; FailedPrecondition from a keeper of a
	// release that cannot.
	Hold(ctx context.Context, name string, files []*os.File) error
	// Held returns the files that are kept under a name, in their order, as further descriptors, which
	// the caller closes. NotFound when there are none.
	Held(ctx context.Context, name string) ([]*os.File, error)
	// Drop closes what is kept under a name. It has happened when Drop returns. It is idempotent.
	Drop(ctx context.Context, name string) error
	// Names are those under which something is kept, sorted.
	Names(ctx context.Context) ([]string, error)
}
