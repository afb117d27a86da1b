package server

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// letGo waits for a child that was let go to run its program.
type letGo struct {
	c        *conn
	id       uint64
	p        *proc
	launched *planned // nil when it was asked for by itself
}

// release lets a parked process run its program.
func (c *conn) release(s *Server, id uint64, p *proc) {
	switch {
	case p.park < 0:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it is not parked")
	case p.letting:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it was let go before")
	case p.phase != running:
		c.fail(s, id, wire.NotFound, "release "+p.key+": it has ended")
	default:
		(&letGo{c: c, id: id, p: p}).begin(s)
	}
}

func (g *letGo) begin(s *Server) {
	// A broken pipe is a child that an earlier keeper let go: its failure pipe
	// tells what became of it.
	if _, err := unix.Write(g.p.park, []byte{1}); err != nil && err != unix.EPIPE {
		g.c.fail(s, g.id, wire.NotFound, "release "+g.p.key+": "+err.Error())
		return
	}
	g.p.letting = true
	s.add(g.p.errs, g, unix.EPOLLIN)
}

// ready is told that the child's failure pipe has closed, which means that its
// program runs, or that something came by it: that it is parked once more, or
// why it failed.
func (g *letGo) ready(s *Server, _ uint32) {
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
			p.waitsNoMore(s)
			roles, _ := p.descriptors()
			p.save(s, roles...)
			p.watchEnd(s)
			s.reapSpent()
			return
		}
	}
	p.letting = false
	if f, ok := err.(*fork.FailedError); ok && f.Step == plan.StepParked { //nolint:errorlint // as in planFail
		s.remove(p.errs)
		g.c.ok(s, g.id, nil)
		return
	}
	s.drop(&p.errs)
	s.drop(&p.park)
	p.names = nil
	p.save(s)
	switch {
	case err != nil && g.launched != nil:
		f := p.planFailure(err)
		p.phase, p.forsaken = starting, true
		delete(s.byPid, p.pid)
		p.abandon(s)
		g.c.refuse(s, g.id, f)
	case err != nil:
		f := p.planFailure(err)
		f.Text = "release " + f.Text[len("launch "):]
		g.c.refuse(s, g.id, f)
	case g.launched != nil:
		g.launched.planAnswer(s)
	default:
		g.c.ok(s, g.id, nil)
	}
}
