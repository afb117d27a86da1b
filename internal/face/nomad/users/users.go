// Package users gives tasks that want a user namespace the ids of the node that
// they have outside of it: a range each, which no other task has.
//
// What is taken is read off the sandboxes that there are, so that nothing is kept.
// It must not know tasks. Start at Ranges.
package users

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// Sandboxes tells which there are.
type Sandboxes interface {
	Sandboxes(context.Context, core.Filter) ([]core.Sandbox, error)
}

// Ranges gives ranges of ids.
type Ranges struct {
	sandboxes Sandboxes

	mu   sync.Mutex      // guards held
	held map[uint32]bool // by starts that have no sandbox yet
}

// New returns what has given nothing yet.
func New(s Sandboxes) *Ranges { return &Ranges{sandboxes: s, held: map[uint32]bool{}} }

// Take returns the first id of a range that is free. It stays taken until release,
// by when there is a sandbox that has it, or none will be. Unavailable when there
// is no other.
func (r *Ranges) Take(ctx context.Context, u plugin.Users) (first uint32, release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.sandboxes.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return 0, nil, err
	}
	for i := range u.Ranges {
		first = u.First + uint32(i)*plugin.UsersRange
		if !r.held[first] && free(all, first) {
			r.held[first] = true
			return first, func() { r.release(first) }, nil
		}
	}
	return 0, nil, fmt.Errorf("all %d ranges of user ids are taken (userns.ranges of the plugin): %w", u.Ranges, errdefs.ErrUnavailable)
}

func (r *Ranges) release(first uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, first)
}

// free: the plugin's configuration may have been another one when a sandbox was
// made, so that ranges may lie across each other.
func free(all []core.Sandbox, first uint32) bool {
	for _, sb := range all {
		for _, m := range sb.Config.UIDs {
			if uint64(m.HostID) < uint64(first)+plugin.UsersRange && uint64(first) < uint64(m.HostID)+uint64(m.Size) {
				return false
			}
		}
	}
	return true
}
