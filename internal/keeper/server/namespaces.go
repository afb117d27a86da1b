package server

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// namespaces makes a user namespace and the namespaces it owns, in a goroutine. The
// agent cannot do this itself: it has many threads, and forking it is expensive.
func (c *conn) namespaces(s *Server, id uint64, m *wire.Namespaces) {
	if s.upgrade != nil {
		s.parked = append(s.parked, parkedRequest{c, func() { c.namespaces(s, id, m) }})
		return
	}
	var flags uint64
	for _, k := range m.Kinds {
		switch k {
		case "user":
		case "net":
			flags |= unix.CLONE_NEWNET
		case "ipc":
			flags |= unix.CLONE_NEWIPC
		case "uts":
			flags |= unix.CLONE_NEWUTS
		default:
			c.fail(s, id, wire.InvalidArgument, "make namespaces: kind "+k)
			return
		}
	}
	uids, gids := idMap(m.UIDs), idMap(m.GIDs)
	if uids.Check() != nil || gids.Check() != nil {
		c.fail(s, id, wire.InvalidArgument, "make namespaces: "+plan.ErrMapping.Error())
		return
	}
	kinds := m.Kinds
	s.begun++
	s.inFlight++
	go func() {
		fds, err := fork.Namespaces(flags, uids, gids, kinds...)
		s.post(func() {
			defer s.operationDone()
			if err != nil {
				c.fail(s, id, wire.Internal, "make namespaces: "+err.Error())
				return
			}
			c.ok(s, id, nil, fds...)
		})
	}()
}

func idMap(ranges []wire.IDRange) (m plan.IDMap) {
	for _, r := range ranges {
		m = append(m, plan.IDRange(r))
	}
	return m
}

// operationDone counts an operation as done, and starts a waiting upgrade if it was the last
// one.
func (s *Server) operationDone() {
	s.inFlight--
	s.waiter.Arm()
	s.upgradeIfIdle()
}
