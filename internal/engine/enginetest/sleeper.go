package enginetest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// Sleeper is a fake core.Sleeper. It outlives an engine as the real one's files and processes do.
type Sleeper struct {
	fault
	cgroups *Cgroups
	lock    sync.Mutex // guards kept
	kept    map[core.ID]*kept
}

// kept is a container with files.
type kept struct {
	stage core.SleepStage
	lost  bool
	watch bool
	knock func()
	done  func(core.Woken)
}

var _ core.Sleeper = (*Sleeper)(nil)

// of returns the record of a container. Preconditions: lock is held.
func (s *Sleeper) of(id core.ID) *kept {
	k := s.kept[id]
	if k == nil {
		k = &kept{stage: core.StageAwake}
		s.kept[id] = k
	}
	return k
}

// Watch stores knock for Knock.
func (s *Sleeper) Watch(ctx context.Context, id core.ID, _ string, knock func()) (bool, error) {
	if err := s.check(ctx, "Watch"); err != nil {
		return false, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	k := s.of(id)
	before := k.watch
	k.watch, k.knock = true, knock
	return before, nil
}

// Sleep freezes the cgroup.
func (s *Sleeper) Sleep(ctx context.Context, id core.ID, cgroup core.CgroupRef) (core.Slept, error) {
	s.lock.Lock()
	s.of(id)
	s.lock.Unlock()
	if err := s.check(ctx, "Sleep"); err != nil {
		return core.Slept{}, err
	}
	if err := s.cgroups.Freeze(ctx, cgroup, true); err != nil {
		return core.Slept{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.of(id).stage = core.StageAsleep
	return core.Slept{Processes: 1, Given: 64 << 20, Stored: 16 << 20, Resident: []core.Resident{{Pid: 7, Why: "io_uring"}}}, nil
}

// Wake thaws the cgroup. Back ends the wake.
func (s *Sleeper) Wake(ctx context.Context, id core.ID, cgroup core.CgroupRef, done func(core.Woken)) error {
	if err := s.check(ctx, "Wake"); err != nil {
		return err
	}
	s.lock.Lock()
	k := s.of(id)
	if k.lost {
		s.lock.Unlock()
		return core.ErrMemoryLost
	}
	awake := k.stage == core.StageAwake
	if k.stage, k.done = core.StageWaking, done; awake {
		delete(s.kept, id)
	}
	s.lock.Unlock()
	if err := s.cgroups.Freeze(ctx, cgroup, false); err != nil {
		return err
	}
	if awake {
		done(core.Woken{})
	}
	return nil
}

// Back ends the wake of a container. It does nothing if the container does not wake.
func (s *Sleeper) Back(id core.ID, w core.Woken) {
	s.lock.Lock()
	k := s.kept[id]
	if k == nil || k.stage != core.StageWaking {
		s.lock.Unlock()
		return
	}
	if w.Err == nil {
		delete(s.kept, id)
	}
	s.lock.Unlock()
	if k.done != nil {
		k.done(w)
	}
}

// Knock is the arrival of a packet.
func (s *Sleeper) Knock(id core.ID) {
	s.lock.Lock()
	knock := s.of(id).knock
	s.lock.Unlock()
	if knock != nil {
		knock()
	}
}

// Lose loses the memory of a container.
func (s *Sleeper) Lose(id core.ID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.of(id).lost = true
}

// Stage returns the stage.
func (s *Sleeper) Stage(ctx context.Context, id core.ID) (core.SleepStage, error) {
	if err := s.check(ctx, "Stage"); err != nil {
		return 0, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	k := s.kept[id]
	switch {
	case k == nil:
		return core.StageNone, nil
	case k.lost:
		return 0, core.ErrMemoryLost
	}
	return k.stage, nil
}

// Forget removes the container.
func (s *Sleeper) Forget(ctx context.Context, id core.ID) error {
	if err := s.check(ctx, "Forget"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.kept, id)
	return nil
}

// Asleep returns the containers, sorted.
func (s *Sleeper) Asleep(ctx context.Context) ([]core.ID, error) {
	if err := s.check(ctx, "Asleep"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Sorted(maps.Keys(s.kept)), nil
}
