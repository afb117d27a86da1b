package server

import (
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// A keeper that has lost its nest becomes the nest: it executes the nest's program, so that its
// children stay its children, and that starts the next keeper. It cannot start a nest beside
// itself, because the kernel gives the children of a dying process to its ancestors.

const (
	// launchGrace is how long it waits for launches that are under way. Those that take longer
	// fail as they do when a keeper dies.
	launchGrace = 500 * time.Millisecond
	// nestRetry is when it tries again after it has failed.
	nestRetry = time.Second
)

// renewal is the state of a keeper without a nest.
type renewal struct {
	lost  time.Time // when the nest was lost; zero if it runs
	tried time.Time // when becoming the nest failed last
}

// wait returns for how many milliseconds the loop may sleep until renew has something to do; -1
// means for ever.
func (r *renewal) wait(now time.Time) int {
	switch {
	case r.lost.IsZero():
		return -1
	case r.tried.IsZero():
		return int(max(0, launchGrace-now.Sub(r.lost))/time.Millisecond) + 1
	}
	return int(max(0, nestRetry-now.Sub(r.tried))/time.Millisecond) + 1
}

// renew becomes the nest if the nest is lost.
func (r *renewal) renew(s *Server) {
	if s.nest.fd >= 0 || s.quit || s.upgrade != nil {
		return
	}
	now := time.Now()
	if r.lost.IsZero() {
		r.lost = now
	}
	switch {
	case r.tried.IsZero() && busy(s) && now.Sub(r.lost) < launchGrace:
		return
	case !r.tried.IsZero() && now.Sub(r.tried) < nestRetry:
		return
	}
	err := becomeNest(s)
	logLine("start a nest: " + err.Error() + "; if the keeper dies before that works, exits are lost")
	first := r.tried.IsZero()
	if r.tried = time.Now(); !first {
		return
	}
	for _, c := range s.conns {
		if c.greeted {
			c.tellNestLost(s)
		}
	}
}

// busy reports whether a client waits for the end of a launch or of a release.
func busy(s *Server) bool {
	for _, p := range s.procs {
		if p.pending != nil {
			return true
		}
	}
	return s.inFlight > 0
}

// becomeNest executes the nest's program. It returns only if that fails.
func becomeNest(s *Server) error {
	if old := s.nest.lostPid; old > 0 && os.Getppid() == old {
		// It lives, and does not read our messages. Two nests would start two keepers.
		logLine("kill the nest, which does not answer")
		_ = unix.Kill(old, unix.SIGKILL)
	}
	m := wire.HandedItems{List: handedItems(s)}
	if !busy(s) { // otherwise clients wait for answers that the next keeper cannot give
		s.dropUnsent()
		m.List = append(m.List, resumeItems(s.newHandover(nil))...)
	}
	mem, err := kernel.Memfd(wire.Record(&m))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mem) }()
	keep := append((&handover{items: m.List}).descriptors(), mem)
	return execute("/proc/self/exe", []string{kernel.NestName, "nest", s.dir, kernel.Itoa(mem)}, kernel.SmallEnv(1), keep)
}

// perItem is how many descriptors of clients one item takes.
const perItem = 128

// resumeItems are the clients' connections, streams and subscriptions, as items for the nest, which
// only passes them on. The first has the state with our numbers of descriptors; each begins with
// the numbers of its own.
func resumeItems(f *handover) (all []wire.HandedItem) {
	state := wire.Record(f)
	fds := f.descriptors()
	slices.Sort(fds)
	fds = slices.Compact(fds)
	for first := true; first || len(fds) > 0; first = false {
		n := min(len(fds), perItem)
		r := resumed{state: state}
		it := wire.HandedItem{Item: wire.Item{Key: wire.ResumePrefix + kernel.Itoa(len(all))}}
		for i, fd := range fds[:n] {
			it.Item.Roles = append(it.Item.Roles, wire.RoleSink+wire.Role(i))
			it.FDs = append(it.FDs, uint64(fd))
			r.numbers = append(r.numbers, uint64(fd))
		}
		it.Item.Blob = wire.Record(&r)
		all, fds, state = append(all, it), fds[n:], nil
	}
	return all
}

// resumed is the record of an item of clients.
type resumed struct {
	numbers []uint64 // of the descriptors, in the keeper that became the nest
	state   []byte   // its handover; empty in all items but one
}

// Fields implements wire.Message.
func (r *resumed) Fields(c *wire.Codec) {
	c.Uints(&r.numbers)
	c.Bytes(&r.state)
}

// resumption collects the items of clients from the keeper that became the nest.
type resumption struct {
	now   map[int]int // descriptors, by the numbers that they had
	state []byte
	keys  []string
}

// take takes an item, unless it is of another kind.
func (r *resumption) take(it *item) bool {
	const n = len(wire.ResumePrefix)
	if len(it.Key) < n || it.Key[:n] != wire.ResumePrefix {
		return false
	}
	if r.now == nil {
		r.now = map[int]int{}
	}
	r.keys = append(r.keys, it.Key)
	var one resumed
	if !wire.ParseRecord(it.Blob, &one) || len(one.numbers) != len(it.fds) {
		kernel.CloseAll(it.fds)
		return true
	}
	for i, fd := range it.fds {
		r.now[int(one.numbers[i])] = fd
	}
	if len(one.state) > 0 {
		r.state = one.state
	}
	return true
}

// restore schedules the restoration of the clients' items. It closes the others, so that their
// clients connect again.
func (r *resumption) restore(s *Server) {
	if len(r.keys) == 0 {
		return
	}
	var f handover
	if !wire.ParseRecord(r.state, &f) {
		f = handover{serial: s.serial, streams: s.lastStream, lost: s.lost}
	}
	f.renumber(r.now)
	used := f.descriptors()
	for _, fd := range r.now {
		if !slices.Contains(used, fd) {
			_ = unix.Close(fd)
		}
	}
	keys := r.keys
	s.resume(&f)
	again := s.afterResume
	s.afterResume = func() {
		again()
		for _, key := range keys {
			s.nest.drop(s, key)
		}
	}
}

// renumber replaces the descriptor numbers of the former program by ours. It leaves out items
// without a number.
func (f *handover) renumber(now map[int]int) {
	number := func(fd uint64) (uint64, bool) {
		n, ok := now[int(fd)]
		return uint64(n), ok
	}
	old := f.conns
	f.conns = nil
	for _, x := range old {
		if fd, ok := number(x.fd); ok {
			f.conns = append(f.conns, handoverConn{fd, x.exits})
		}
	}
	for i := range f.links {
		l := &f.links[i]
		for _, p := range []*uint64{&l.conn, &l.taps[0], &l.taps[1]} {
			fd, ok := number(*p - 1)
			if *p > 0 && ok {
				*p = fd + 1
			} else {
				*p = 0
			}
		}
	}
	for i := range f.items {
		var copies subscribers
		if f.items[i].Item.Key != copiesKey || !wire.ParseRecord(f.items[i].Item.Blob, &copies) {
			continue
		}
		var left subscribers
		for _, x := range copies.list {
			if fd, ok := number(x.fd); ok {
				left.list = append(left.list, handoverConn{fd, x.exits})
			}
		}
		f.items[i].Item.Blob = wire.Record(&left)
	}
}
