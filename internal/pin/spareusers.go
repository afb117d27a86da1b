package pin

import (
	"context"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// maxSets is how many user namespaces are kept ready. Sandboxes that start one after the other get four ranges in turn, and began
// prepares the one after the fourth: with room for four, each new set would discard the one that is needed next.
const maxSets = 5

// makeTimeout is the limit of one request for namespaces that nobody waits for.
const makeTimeout = 10 * time.Second

// spareUsers keeps user namespaces ready, with the namespaces that they own, as Spare does for network namespaces. A user namespace
// fits one mapping only. The engine gives the lowest free ranges to sandboxes, in turn, and kubelet the lowest one, so the next sandbox
// probably has the range of one that ended lately, or the range after that of the last one that started. A set that nobody takes is
// closed after spareAge.
type spareUsers struct {
	make MakeFunc

	mu     sync.Mutex // guards ready, making, pinned, closed
	ready  []*set     // the oldest first
	making []mapped
	pinned map[core.ID]mapped
	closed bool
}

// mapped describes a user namespace.
type mapped struct {
	uids, gids []specs.LinuxIDMapping
	kinds      []specs.LinuxNamespaceType
}

// set is a user namespace, unused.
type set struct {
	mapped
	files []*os.File // as MakeFunc returns them
	old   *time.Timer
}

func mappedOf(req core.PinRequest) mapped {
	return mapped{slices.Clone(req.UIDs), slices.Clone(req.GIDs), slices.Clone(req.Kinds)}
}

func (m mapped) equal(o mapped) bool {
	return slices.Equal(m.uids, o.uids) && slices.Equal(m.gids, o.gids) && slices.Equal(m.kinds, o.kinds)
}

// next returns m with the range of ids after its own. It fails if m has several ranges, or the range is the last.
func (m mapped) next() (mapped, bool) {
	if len(m.uids) != 1 || !slices.Equal(m.uids, m.gids) {
		return mapped{}, false
	}
	r := m.uids[0]
	if uint64(r.HostID)+2*uint64(r.Size) > math.MaxUint32 {
		return mapped{}, false
	}
	r.HostID += r.Size
	ranges := []specs.LinuxIDMapping{r}
	return mapped{ranges, ranges, m.kinds}, true
}

// take returns the files of a set that only the caller has, and has to close, or nil if none fits.
func (s *spareUsers) take(m mapped) []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.ready, func(r *set) bool { return r.equal(m) })
	if i < 0 {
		return nil
	}
	taken := s.ready[i]
	s.ready = slices.Delete(s.ready, i, i+1)
	taken.old.Stop()
	return taken.files
}

// began records that a sandbox has m, and prepares for the next one.
func (s *spareUsers) began(id core.ID, m mapped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pinned == nil {
		s.pinned = map[core.ID]mapped{}
	}
	s.pinned[id] = m
	for range maxSets {
		var ok bool
		if m, ok = m.next(); !ok {
			return
		}
		if !s.used(m) {
			s.prepare(m)
			return
		}
	}
}

// ended records that a sandbox has gone, and prepares for one with the same mapping.
func (s *spareUsers) ended(id core.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.pinned[id]
	if !ok {
		return
	}
	delete(s.pinned, id)
	if !s.used(m) {
		s.prepare(m)
	}
}

// used reports whether a sandbox has m. Preconditions: mu is held.
func (s *spareUsers) used(m mapped) bool {
	for _, p := range s.pinned {
		if p.equal(m) {
			return true
		}
	}
	return false
}

// prepare makes a set after spareDelay unless there is one. Preconditions: mu is held.
func (s *spareUsers) prepare(m mapped) {
	if s.closed || len(s.making) >= maxSets || slices.ContainsFunc(s.making, m.equal) || slices.ContainsFunc(s.ready, func(r *set) bool { return r.equal(m) }) {
		return
	}
	s.making = append(s.making, m)
	time.AfterFunc(spareDelay, func() {
		ctx, cancel := context.WithTimeout(context.Background(), makeTimeout)
		defer cancel()
		files, err := s.make(ctx, m.uids, m.gids, m.kinds...)
		s.made(m, files, err)
	})
}

func (s *spareUsers) made(m mapped, files []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making = slices.DeleteFunc(s.making, m.equal)
	if err != nil { // a sandbox that needs them makes them itself, and reports why that fails
		return
	}
	if s.closed || s.used(m) {
		closeAll(files)
		return
	}
	made := &set{mapped: m, files: files}
	made.old = time.AfterFunc(spareAge, func() { s.drop(made) })
	s.ready = append(s.ready, made)
	if len(s.ready) > maxSets {
		s.discard(0)
	}
}

func (s *spareUsers) drop(old *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.ready, old); i >= 0 {
		s.discard(i)
	}
}

// discard closes a set. Preconditions: mu is held.
func (s *spareUsers) discard(i int) {
	s.ready[i].old.Stop()
	closeAll(s.ready[i].files)
	s.ready = slices.Delete(s.ready, i, i+1)
}

func (s *spareUsers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.ready) > 0 {
		s.discard(0)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
