package server

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// Held items are open files of agents that we never use. The nest has them, too: an agent that
// starts while there is no keeper gets them from the next one.

// heldItem is the item with n held descriptors, for the nest or the program after an upgrade.
func heldItem(name string, n int) wire.Item {
	it := wire.Item{Key: wire.HeldPrefix + name}
	for i := range n {
		it.Roles = append(it.Roles, wire.RoleSink+wire.Role(i))
	}
	return it
}

// heldName returns the name in the key of a heldItem.
func heldName(key string) (name string, ok bool) {
	const n = len(wire.HeldPrefix)
	if len(key) <= n || key[:n] != wire.HeldPrefix {
		return "", false
	}
	return key[n:], true
}

// onHeld handles the requests about the files under one name. The caller keeps the descriptors.
func (c *conn) onHeld(s *Server, h wire.Header, name string, fds []int) {
	if name == "" || len(name) > wire.MaxHeldName {
		c.fail(s, h.ID, wire.InvalidArgument, "hold: the name is empty or too long")
		return
	}
	have := s.heldFiles[name]
	switch h.Kind {
	case wire.KindHold:
		switch {
		case len(fds) == 0 || len(fds) > wire.MaxHeld:
			c.fail(s, h.ID, wire.InvalidArgument, "hold: "+kernel.Itoa(len(fds))+" descriptors, possible are 1 to "+kernel.Itoa(wire.MaxHeld))
			return
		case len(have) == 0 && len(s.heldFiles) >= wire.MaxNames:
			c.fail(s, h.ID, wire.ResourceExhausted, "hold: "+kernel.Itoa(wire.MaxNames)+" names are in use")
			return
		}
		own, err := duplicates(fds)
		if err != nil {
			c.fail(s, h.ID, wire.ResourceExhausted, "hold: "+err.Error())
			return
		}
		s.heldFiles[name] = own
		kernel.CloseAll(have)
		it := heldItem(name, len(own))
		s.nest.put(s, &it, own)
		s.changed(it.Key)
	case wire.KindHeld:
		if len(have) == 0 {
			c.fail(s, h.ID, wire.NotFound, "held: nothing under this name")
			return
		}
		fds, err := duplicates(have) // answer closes them
		if err != nil {
			c.fail(s, h.ID, wire.ResourceExhausted, "held: "+err.Error())
			return
		}
		c.ok(s, h.ID, nil, fds...)
		return
	case wire.KindDropHeld:
		delete(s.heldFiles, name)
		kernel.CloseAll(have)
		// The nest may have some that we do not know of: a program without this request was in our
		// place for a while.
		s.nest.drop(s, wire.HeldPrefix+name)
		s.changed(wire.HeldPrefix + name)
	}
	s.inFlight++ // an upgrade waits for it
	s.nest.sync(s, func() {
		c.ok(s, h.ID, nil)
		s.operationDone()
	})
}

// duplicates returns further descriptors of the same files.
func duplicates(fds []int) ([]int, error) {
	var own []int
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			kernel.CloseAll(own)
			return nil, err
		}
		own = append(own, dup)
	}
	return own, nil
}

func (s *Server) heldNames() *wire.HeldNames {
	l := &wire.HeldNames{}
	for name := range s.heldFiles {
		l.List = append(l.List, name)
	}
	slices.Sort(l.List)
	return l
}
