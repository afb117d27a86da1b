package server

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// upgrade is a request to execute another program in place, which waits until no
// command is running.
type upgrade struct {
	c    *conn
	id   uint64
	path string
}

func (c *conn) beginUpgrade(s *Server, id uint64, path string) {
	switch {
	case path == "" || path[0] != '/':
		c.fail(s, id, wire.InvalidArgument, "upgrade: the program's path is not absolute")
		return
	case s.upgrade != nil:
		c.fail(s, id, wire.FailedPrecondition, "upgrade: another one is under way")
		return
	}
	s.upgrade = &upgrade{c, id, path}
	if s.inFlight == 0 {
		s.doUpgrade()
	}
}

// doUpgrade executes the new program: same process, same children, same sockets. If it
// returns, the upgrade has failed and the keeper goes on as before.
func (s *Server) doUpgrade() {
	u := s.upgrade
	err := s.become(u)
	s.upgrade = nil
	u.c.fail(s, u.id, wire.Internal, "upgrade to "+u.path+": "+err.Error())
	parked := s.parked
	s.parked = nil
	for _, fn := range parked {
		fn()
	}
}

func (s *Server) become(u *upgrade) error {
	for _, c := range s.conns {
		if len(c.out) > 0 { // answers not yet sent are not handed over
			c.closeConn(s)
		}
	}
	st, keep := s.newHandover(u)
	mem, err := kernel.Memfd(wire.Record(st))
	if err != nil {
		return err
	}
	keep = append(keep, mem)
	if s.nest.fd >= 0 {
		keep = append(keep, s.nest.fd)
	}
	for _, fd := range keep {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
	file, done := kernel.Shielded(u.path)
	defer done()
	kernel.HugePages(false)
	err = unix.Exec(file, []string{"longshore-keeper", "keeper", s.dir, kernel.Itoa(mem)}, kernel.SmallEnv(2))
	kernel.HugePages(true)
	for _, fd := range keep {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	_ = unix.Close(mem)
	return err
}

// handover is the keeper's state as the old program hands it to the new one.
type handover struct {
	nestPid uint64
	path    string
	upConn  uint64 // connection, as descriptor plus one, and id of the upgrade request
	upID    uint64
	serial  uint64
	streams uint64
	started int64
	lost    uint64
	items   []handoverItem
	conns   []handoverConn
	links   []handoverStream
}

type handoverItem struct {
	item wire.Item
	fds  []uint64
}

type handoverConn struct{ fd, exits uint64 }

type handoverStream struct {
	id, conn uint64 // conn is the descriptor plus one, 0 for none
	serial   uint64
	stdin    bool
	holder   bool
	taps     [2]uint64 // descriptor plus one
}

// Fields implements wire.Message.
func (f *handover) Fields(c *wire.Codec) {
	c.Uint(&f.nestPid)
	c.Str(&f.path)
	c.Uint(&f.upConn)
	c.Uint(&f.upID)
	c.Uint(&f.serial)
	c.Uint(&f.streams)
	c.Int(&f.started)
	c.Uint(&f.lost)
	wire.List(c, &f.items, func(it *handoverItem) {
		it.item.Fields(c)
		c.Uints(&it.fds)
	})
	wire.List(c, &f.conns, func(x *handoverConn) {
		c.Uint(&x.fd)
		c.Uint(&x.exits)
	})
	wire.List(c, &f.links, func(l *handoverStream) {
		c.Uint(&l.id)
		c.Uint(&l.conn)
		c.Uint(&l.serial)
		c.Bool(&l.stdin)
		c.Bool(&l.holder)
		c.Uint(&l.taps[0])
		c.Uint(&l.taps[1])
	})
}

// newHandover collects the state, and lists the descriptors that must stay open.
func (s *Server) newHandover(u *upgrade) (f *handover, keep []int) {
	f = &handover{
		nestPid: uint64(s.nest.pid), path: u.path, upConn: plus1(u.c.fd), upID: u.id,
		serial: s.serial, streams: s.lastStream, started: s.started.UnixNano(), lost: s.lost,
	}
	f.items = append(f.items, handoverItem{wire.Item{Key: socketKey, Roles: []wire.Role{wire.RoleSocket}}, []uint64{uint64(s.listenFD)}})
	keep = append(keep, s.listenFD)
	for _, p := range s.procs {
		roles, fds := p.descriptors()
		it := handoverItem{item: wire.Item{Key: p.key, Roles: roles, Blob: p.record(nil)}}
		for _, fd := range fds {
			it.fds = append(it.fds, uint64(fd))
		}
		f.items = append(f.items, it)
		keep = append(keep, fds...)
		for _, st := range p.streams {
			l := handoverStream{id: st.id, serial: p.serial, stdin: st.stdin, holder: p.holder == st}
			if st.c != nil {
				l.conn = plus1(st.c.fd)
			}
			for i, t := range st.taps {
				if t != nil && t.FD >= 0 {
					l.taps[i] = plus1(t.FD)
					keep = append(keep, t.FD)
				}
			}
			f.links = append(f.links, l)
		}
	}
	for name, fds := range s.held {
		it := handoverItem{item: heldItem(name, len(fds))}
		for _, fd := range fds {
			it.fds = append(it.fds, uint64(fd))
		}
		f.items = append(f.items, it)
		keep = append(keep, fds...)
	}
	for _, c := range s.conns {
		if c.greeted {
			f.conns = append(f.conns, handoverConn{uint64(c.fd), c.exits})
			keep = append(keep, c.fd)
		}
	}
	return f, keep
}

func plus1(fd int) uint64 { return uint64(fd + 1) }

// readResume takes over the state from the program before the upgrade.
func (s *Server) readResume(mem int) ([]item, error) {
	b, err := kernel.ReadFD(mem, wire.MaxBody)
	_ = unix.Close(mem)
	if err != nil {
		return nil, err
	}
	var f handover
	if !wire.ParseRecord(b, &f) {
		return nil, unix.EPROTO
	}
	if s.nest.pid = int(f.nestPid); s.nest.pid == 0 || os.Getppid() != s.nest.pid {
		s.nest = nest{fd: -1}
	}
	s.serial, s.lastStream, s.lost = f.serial, f.streams, f.lost
	var items []item
	for _, it := range f.items {
		if len(it.fds) != len(it.item.Roles) {
			return nil, unix.EPROTO
		}
		x := item{Item: it.item}
		for _, fd := range it.fds {
			unix.CloseOnExec(int(fd))
			x.fds = append(x.fds, int(fd))
		}
		items = append(items, x)
	}
	s.afterResume = func() { s.reconnect(&f) }
	return items, nil
}

// reconnect restores connections and streams once the processes are restored.
func (s *Server) reconnect(f *handover) {
	for _, x := range f.conns {
		fd := int(x.fd)
		unix.CloseOnExec(fd)
		c := s.addConn(fd)
		c.greeted, c.exits = true, x.exits
	}
	for _, l := range f.links {
		p := s.bySerial[l.serial]
		if p == nil {
			continue
		}
		st := &stream{id: l.id, p: p, stdin: l.stdin}
		p.streams[st.id] = st
		if c := s.conns[int(l.conn)-1]; l.conn > 0 && c != nil {
			st.c = c
			c.streams[st.id] = st
		}
		if l.holder && st.c != nil {
			p.holder = st
		}
		for i, src := range []*source{p.out, p.err} {
			if fd := int(l.taps[i]) - 1; fd >= 0 && src != nil {
				unix.CloseOnExec(fd)
				st.newTap(s, src, fd, i)
			}
		}
		if st.c == nil { // its client has gone, and nobody else would end its input
			st.endStream(s, true)
		}
	}
	s.nest.send(s, wire.KindNestBinary, &wire.Program{Path: f.path}, nil)
	if c := s.conns[int(f.upConn)-1]; f.upConn > 0 && c != nil {
		c.ok(s, f.upID, nil)
	}
}
