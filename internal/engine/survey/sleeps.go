package survey

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/longshore/longshore/internal/core"
)

// stored returns the containers that have memory in files.
func (n *Node) stored(ctx context.Context) (map[core.ID]bool, error) {
	if n.Sleeper == nil {
		return map[core.ID]bool{}, nil
	}
	ids, err := n.Sleeper.Asleep(ctx)
	if err != nil {
		err = fmt.Errorf("list the memory of sleeping containers: %w", err)
	}
	return set(ids), err
}

// sleeps compares the files of sleeping containers with the records. It uses both lists of files, because a container may fall
// asleep or wake while the node is read.
func (s *Survey) sleeps() {
	if s.n.Sleeper == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id]
		if c.State == core.ContainerAsleep && c.Rest != nil && c.Rest.Phase == core.RestAsleep && !s.storedFirst[id] && !s.storedLast[id] {
			s.add(Finding{Violation: Violation{"missing", "container " + string(id), "it sleeps, and its memory is gone"}, Sandbox: c.Sandbox})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.storedFirst)) {
		c, known := s.containers[id]
		if !s.storedLast[id] || known && c.State.Live() && c.MemoryOut() {
			continue
		}
		s.add(Finding{
			Violation: Violation{"orphan", "memory of container " + string(id), "the container does not sleep"}, Orphan: true, Sandbox: c.Sandbox,
			Repair: func(ctx context.Context) error { return s.n.Sleeper.Forget(ctx, id) },
		})
	}
}
