package server

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// pendingRelease is a released child that has not reported yet whether its program runs.
type pendingRelease struct {
	requesters []requester
	p          *proc
	kind       wire.Kind // KindRelease or KindAdvance
	launched   *planned  // the launch that released it; nil if a request of its own did
}

// requester identifies a request that waits for an answer.
type requester struct {
	c  *conn
	id uint64
}

func (g *pendingRelease) ok(s *Server) {
	for _, a := range g.requesters {
		a.c.ok(s, a.id, nil)
	}
}

func (g *pendingRelease) refuse(s *Server, f *wire.Fail) {
	for _, a := range g.requesters {
		a.c.refuse(s, a.id, f)
	}
}

// release lets a parked process execute its program. A repeated request gets the same answer as the
// first one, because a restarted agent does not know the result of its request.
func (c *conn) release(s *Server, id uint64, p *proc) {
	switch {
	case p.phase != running:
		c.fail(s, id, wire.Ended, "release "+p.key+": it has ended")
	case p.refused != nil:
		c.refuse(s, id, p.refused)
	case p.pending != nil && p.pending.kind == wire.KindRelease:
		p.pending.requesters = append(p.pending.requesters, requester{c, id})
	case p.park < 0 && p.byPlan():
		c.ok(s, id, nil) // released before, and its program runs
	default:
		c.unpark(s, id, p, wire.KindRelease)
	}
}

// unpark releases a parked process, which continues to its next parking place or its program.
func (c *conn) unpark(s *Server, id uint64, p *proc, kind wire.Kind) {
	switch {
	case p.park < 0:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it is not parked")
	case p.pending != nil:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it has already been released")
	case p.phase != running:
		c.fail(s, id, wire.Ended, "release "+p.key+": it has ended")
	default:
		(&pendingRelease{requesters: []requester{{c, id}}, p: p, kind: kind}).begin(s)
	}
}

func (g *pendingRelease) begin(s *Server) {
	// EPIPE means that an earlier keeper released the child. Its failure pipe has its result.
	if _, err := unix.Write(g.p.park, []byte{1}); err != nil && err != unix.EPIPE {
		g.refuse(s, &wire.Fail{Class: wire.NotFound, Text: "release " + g.p.key + ": " + err.Error()})
		return
	}
	g.p.pending = g
	s.add(g.p.errs, g, unix.EPOLLIN)
}

// ready reads the failure pipe of the released child. If the pipe has closed, the
// program runs; otherwise the child reports that it has parked again, or why it
// failed.
func (g *pendingRelease) ready(s *Server, _ uint32) {
	p := g.p
	if p.errs < 0 {
		return
	}
	err := fork.Failed(p.errs, func(i int) string {
		if i -= p.namesFrom; i >= 0 && i < len(p.names) {
			return p.names[i]
		}
		i += p.namesFrom
		return "operation " + kernel.Itoa(i)
	})
	if fork.IsForked(err) && p.second != nil && p.phase == running {
		if err = p.second.Follow(err, func(pid, pidfd int) { p.follow(s, pid, pidfd) }); err == nil {
			p.dropSecond(s)
			roles, _ := p.descriptors()
			p.save(s, roles...)
			p.watchEnd(s)
			s.reapFirstChildren()
			return
		}
	}
	p.pending = nil
	if f, ok := err.(*fork.FailedError); ok && f.Step == plan.StepParked { //nolint:errorlint // as in planFail
		s.remove(p.errs)
		g.ok(s)
		return
	}
	s.drop(&p.errs)
	s.drop(&p.park)
	p.names = nil
	p.save(s)
	switch {
	case err != nil && g.launched != nil:
		f := p.planFailure(err)
		p.phase, p.givenUp = starting, true
		delete(s.byPid, p.pid)
		p.abandon(s)
		g.refuse(s, f)
	case err != nil:
		f := p.planFailure(err)
		f.Text = "release " + f.Text[len("launch "):]
		p.refused = f
		g.refuse(s, f)
	case g.launched != nil:
		g.launched.planAnswer(s)
	default:
		g.ok(s)
	}
}
