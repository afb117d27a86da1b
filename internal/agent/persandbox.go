package agent

import (
	"sync/atomic"

	"github.com/longshore/longshore/internal/core"
)

// perSandbox has a number for each sandbox, from the last report of the name server.
type perSandbox struct {
	last atomic.Pointer[map[core.ID]uint64]
}

func (u *perSandbox) store(all map[core.ID]uint64) { u.last.Store(&all) }

// load returns the numbers by the ids of sandboxes.
func (u *perSandbox) load() map[string]uint64 {
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
