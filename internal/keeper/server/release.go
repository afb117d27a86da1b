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
	askers   []asker
	p        *proc
	kind     wire.Kind // KindRelease or KindAdvance
	launched *planned  // nil when it was asked for by itself
}

// asker is a request that waits for an answer.
type asker struct {
	c  *conn
	id uint64
}

func (g *letGo) ok(s *Server) {
	for _, a := range g.askers {
		a.c.ok(s, a.id, nil)
	}
}

func (g *letGo) refuse(s *Server, f *wire.Fail) {
	for _, a := range g.askers {
		a.c.refuse(s, a.id, f)
	}
}

// release lets a parked process run its program. Who asks again is told what the
// first was told: an agent that has died cannot know what became of its request.
func (c *conn) release(s *Server, id uint64, p *proc) {
	switch {
	case p.phase != running:
		c.fail(s, id, wire.Ended, "release "+p.key+": it has ended")
	case p.refused != nil:
		c.refuse(s, id, p.refused)
	case p.letting != nil && p.letting.kind == wire.KindRelease:
		p.letting.askers = append(p.letting.askers, asker{c, id})
	case p.park < 0 && p.byPlan():
		c.ok(s, id, nil) // it runs
	default:
		c.goOn(s, id, p, wire.KindRelease)
	}
}

// goOn lets a parked process go on to where it parks next, or to its program.
func (c *conn) goOn(s *Server, id uint64, p *proc, kind wire.Kind) {
	switch {
	case p.park < 0:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it is not parked")
	case p.letting != nil:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it was let go before")
	case p.phase != running:
		c.fail(s, id, wire.Ended, "release "+p.key+": it has ended")
	default:
		(&letGo{askers: []asker{{c, id}}, p: p, kind: kind}).begin(s)
	}
}

func (g *letGo) begin(s *Server) {
	// A broken pipe is a child that an earlier keeper let go: its failure pipe
	// tells what became of it.
	if _, err := unix.Write(g.p.park, []byte{1}); err != nil && err != unix.EPIPE {
		g.refuse(s, &wire.Fail{Class: wire.NotFound, Text: "release " + g.p.key + ": " + err.Error()})
		return
	}
	g.p.letting = g
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
	p.letting = nil
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
		p.phase, p.forsaken = starting, true
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
