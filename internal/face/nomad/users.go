package nomad

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// sandboxLister lists the sandboxes of the face.
type sandboxLister interface {
	Sandboxes(context.Context, core.Filter) ([]core.Sandbox, error)
}

// userRanges gives each task that wants a user namespace a range of the node's ids that no
// other task has. The ranges in use are read from the sandboxes, so that nothing is stored.
type userRanges struct {
	sandboxes sandboxLister

	mu    sync.Mutex      // guards taken
	taken map[uint32]bool // by starts without a sandbox yet
}

func newUserRanges(s sandboxLister) *userRanges {
	return &userRanges{sandboxes: s, taken: map[uint32]bool{}}
}

// take returns the first id of a range that is free. It stays taken until release,
// by when there is a sandbox that has it, or none will be. Unavailable when there
// is no other.
func (r *userRanges) take(ctx context.Context, u plugin.Users) (first uint32, release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.sandboxes.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return 0, nil, err
	}
	for i := range u.Ranges {
		first = u.First + uint32(i)*plugin.UsersRange
		if !r.taken[first] && rangeFree(all, first) {
			r.taken[first] = true
			return first, func() { r.release(first) }, nil
		}
	}
	return 0, nil, fmt.Errorf("all %d ranges of user ids are taken (userns.ranges of the plugin): %w", u.Ranges, errdefs.ErrUnavailable)
}

func (r *userRanges) release(first uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, first)
}

// rangeFree reports whether no sandbox's range overlaps the one that begins at first. The plugin's configuration may
// have changed since a sandbox was made, so ranges may overlap partly.
func rangeFree(all []core.Sandbox, first uint32) bool {
	for _, sb := range all {
		for _, m := range sb.Config.UIDs {
			if uint64(m.HostID) < uint64(first)+plugin.UsersRange && uint64(first) < uint64(m.HostID)+uint64(m.Size) {
				return false
			}
		}
	}
	return true
}
