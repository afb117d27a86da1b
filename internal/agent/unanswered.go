package agent

import (
	"sync/atomic"

	"github.com/longshore/longshore/internal/core"
)

// unanswered has, for each sandbox, the number of questions that the name server dropped because of a bound, from its
// last report.
type unanswered struct {
	last atomic.Pointer[map[core.ID]uint64]
}

func (u *unanswered) store(all map[core.ID]uint64) { u.last.Store(&all) }

// load returns the numbers by the ids of sandboxes.
func (u *unanswered) load() map[string]uint64 {
	all := u.last.Load()
	if all == nil {
		return nil
	}
	m := make(map[string]uint64, len(*all))
	for id, n := range *all {
		m[string(id)] = n
	}
	return m
}
