package core

import (
	"context"
	"os"
)

// Holder keeps files open after the end of the agent and of their users: data that arrives at a socket
// meanwhile waits there. The keeper is one; its parent has them too, so that they outlive both.
//
// Callers must drop files that they no longer need: a socket keeps its network namespace.
type Holder interface {
	// Hold keeps files under a name, in place of earlier ones. The caller's descriptors stay open.
	// InvalidArgument for no file, more than four, or a name that is empty or longer than 255 bytes;
	// ResourceExhausted when too much is held; FailedPrecondition from a keeper of a release without
	// this call.
	Hold(ctx context.Context, name string, files []*os.File) error
	// Held returns the files that are kept under a name, in their order, as further descriptors, which
	// the caller closes. NotFound when there are none.
	Held(ctx context.Context, name string) ([]*os.File, error)
	// Drop closes the files under a name before it returns. It is idempotent.
	Drop(ctx context.Context, name string) error
	// Names are those under which something is kept, sorted.
	Names(ctx context.Context) ([]string, error)
}
