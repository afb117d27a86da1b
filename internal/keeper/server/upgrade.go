package server

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/weaken"
)

// dies is the mark of test builds that die at a stage of the upgrade: 1, 2 in the program before, 3, 4 in the next one.
const dies = "keeper-dies"

// upgrade is a request to execute another program in place, which waits until no
// command is running.
type upgrade struct {
	c    *conn
	id   uint64
	path string
	late bool // it waits no more for released children
}

// parkedRequest is a request of a client that came while an upgrade was waiting.
type parkedRequest struct {
	c  *conn
	do func()
}

// releasePatience is how long an upgrade waits for released children to execute their programs. Afterwards the clients that wait for
// that repeat their requests.
const releasePatience = 2 * time.Second

func (c *conn) beginUpgrade(s *Server, id uint64, path string) {
	switch {
	case path == "" || path[0] != '/':
		c.fail(s, id, wire.InvalidArgument, "upgrade: the program's path is not absolute")
		return
	case s.upgrade != nil:
		c.fail(s, id, wire.FailedPrecondition, "upgrade: another one is under way")
		return
	}
	weaken.Die(dies, 1)
	u := &upgrade{c: c, id: id, path: path}
	s.upgrade = u
	s.delays.after(releasePatience, func() {
		u.late = true
		s.upgradeIfIdle()
	})
	s.upgradeIfIdle()
}

// upgradeIfIdle does the upgrade that waits, unless a client waits for the end of a launch or of a release.
func (s *Server) upgradeIfIdle() {
	if s.upgrade != nil && s.inFlight == 0 && (s.upgrade.late || !busy(s)) {
		s.doUpgrade()
	}
}

// errBehind refuses an upgrade while the nest lacks something, because the next program would lack it
// too.
var errBehind = errors.New("descriptors or memory are used up, and the nest does not hold everything: try again later")

// doUpgrade executes the new program: same process, same children, same sockets. If it returns, the
// upgrade has failed and the keeper continues as before.
func (s *Server) doUpgrade() {
	u := s.upgrade
	err := s.become(u)
	s.upgrade = nil
	u.c.fail(s, u.id, wire.Internal, "upgrade to "+u.path+": "+err.Error())
	parked := s.parked
	s.parked = nil
	for _, r := range parked {
		r.do()
	}
}

func (s *Server) become(u *upgrade) error {
	if s.nest.behind() {
		return errBehind
	}
	s.dropUnsent()
	st := s.newHandover(u)
	st.items = append(st.items, handedItems(s)...)
	keep := st.descriptors()
	mem, err := kernel.Memfd(wire.Record(st))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mem) }()
	keep = append(keep, mem)
	if s.nest.fd >= 0 {
		keep = append(keep, s.nest.fd)
	}
	weaken.Die(dies, 2)
	return execute(u.path, []string{kernel.KeeperName, "keeper", s.dir, kernel.Itoa(mem)}, kernel.SmallEnv(2), keep)
}

// dropUnsent disconnects the clients that wait for answers, which are not handed over. A client
// repeats its request then. The agent sends no request that would be parked while it waits for the upgrade.
func (s *Server) dropUnsent() {
	for _, r := range s.parked {
		r.c.closeConn(s)
	}
	for _, c := range s.conns {
		if len(c.out) > 0 {
			c.closeConn(s)
		}
	}
	for _, p := range s.procs {
		if p.pending == nil {
			continue
		}
		for _, r := range p.pending.requesters {
			if r.c != nil {
				r.c.closeConn(s)
			}
		}
	}
}

// execute replaces this program, and leaves descriptors open in the next one. It returns only if
// that fails, with everything as before.
func execute(path string, args, env []string, keep []int) error {
	for _, fd := range keep {
		kernel.Inherit(fd)
	}
	file, done := kernel.Shielded(path)
	defer done()
	kernel.HugePages(false)
	err := unix.Exec(file, args, env)
	kernel.HugePages(true)
	for _, fd := range keep {
		unix.CloseOnExec(fd)
	}
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
	items   []wire.HandedItem
	conns   []handoverConn
	links   []handoverStream
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
	wire.List(c, &f.items, func(it *wire.HandedItem) { it.Fields(c) })
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

// newHandover collects the clients' connections, streams and subscriptions.
func (s *Server) newHandover(u *upgrade) *handover {
	f := &handover{nestPid: uint64(s.nest.pid), serial: s.serial, streams: s.lastStream, started: s.started.UnixNano(), lost: s.lost}
	if u != nil {
		f.path, f.upConn, f.upID = u.path, plus1(u.c.fd), u.id
	}
	for _, p := range s.procs {
		for _, st := range p.streams {
			l := handoverStream{id: st.id, serial: p.serial, stdin: st.stdin, holder: p.holder == st}
			if st.c != nil {
				l.conn = plus1(st.c.fd)
			}
			for i, t := range st.taps {
				if t != nil && t.FD >= 0 {
					l.taps[i] = plus1(t.FD)
				}
			}
			f.links = append(f.links, l)
		}
	}
	var copies subscribers
	for _, c := range s.conns {
		if c.greeted {
			f.conns = append(f.conns, handoverConn{uint64(c.fd), c.exits})
		}
		if c.copies != nil {
			copies.list = append(copies.list, handoverConn{uint64(c.fd), c.copies.id})
		}
	}
	f.items = append(f.items, wire.HandedItem{Item: wire.Item{Key: copiesKey, Blob: wire.Record(&copies)}})
	return f
}

// copiesKey is the key of the item with the clients that have asked for copies. A program of an
// earlier release takes it for a process with an unreadable record, and drops it.
const copiesKey = "copies"

// subscribers are clients with the ids of their requests.
type subscribers struct{ list []handoverConn }

// Fields implements wire.Message.
func (m *subscribers) Fields(c *wire.Codec) {
	wire.List(c, &m.list, func(x *handoverConn) {
		c.Uint(&x.fd)
		c.Uint(&x.exits)
	})
}

// handedItems are all items that the nest holds, with our own descriptors.
func handedItems(s *Server) []wire.HandedItem {
	all := []wire.HandedItem{{Item: wire.Item{Key: socketKey, Roles: []wire.Role{wire.RoleSocket}}, FDs: []uint64{uint64(s.listenFD)}}}
	add := func(it wire.Item, fds []int) {
		h := wire.HandedItem{Item: it}
		for _, fd := range fds {
			h.FDs = append(h.FDs, uint64(fd))
		}
		all = append(all, h)
	}
	for _, p := range s.procs {
		if p.stored {
			add(p.item(s))
		}
	}
	for name, fds := range s.heldFiles {
		add(heldItem(name, len(fds)), fds)
	}
	return all
}

// descriptors lists the descriptors that the next program inherits.
func (f *handover) descriptors() (fds []int) {
	for _, it := range f.items {
		for _, fd := range it.FDs {
			fds = append(fds, int(fd))
		}
	}
	for _, c := range f.conns {
		fds = append(fds, int(c.fd))
	}
	for _, l := range f.links {
		for _, t := range l.taps {
			if t > 0 {
				fds = append(fds, int(t)-1)
			}
		}
	}
	return fds
}

func plus1(fd int) uint64 { return uint64(fd + 1) }

// readResume takes over the state from the program before the upgrade.
func (s *Server) readResume(mem int) ([]item, error) {
	weaken.Die(dies, 3)
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
	var items []item
	for _, it := range f.items {
		if len(it.FDs) != len(it.Item.Roles) {
			return nil, unix.EPROTO
		}
		x := item{Item: it.Item}
		for _, fd := range it.FDs {
			unix.CloseOnExec(int(fd))
			x.fds = append(x.fds, int(fd))
		}
		if it.Item.Key != copiesKey {
			items = append(items, x)
		}
	}
	s.resume(&f)
	return items, nil
}

// resume schedules the restoration of the former program's clients.
func (s *Server) resume(f *handover) {
	s.serial, s.lastStream, s.lost = f.serial, f.streams, f.lost
	s.afterResume = func() { s.reconnect(f) }
}

// reconnect restores connections and streams once the processes are restored.
func (s *Server) reconnect(f *handover) {
	for _, x := range f.conns {
		fd := int(x.fd)
		unix.CloseOnExec(fd)
		c := s.addConn(fd)
		c.greeted, c.exits = true, x.exits
	}
	for _, it := range f.items {
		var copies subscribers
		if it.Item.Key != copiesKey || !wire.ParseRecord(it.Item.Blob, &copies) {
			continue
		}
		for _, x := range copies.list {
			if c := s.conns[int(x.fd)]; c != nil {
				c.copyAll(s, x.exits)
			}
		}
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
	weaken.Die(dies, 4)
	if f.path != "" {
		s.nest.send(s, wire.KindNestBinary, &wire.Program{Path: f.path})
	}
	if c := s.conns[int(f.upConn)-1]; f.upConn > 0 && c != nil {
		c.ok(s, f.upID, nil)
	}
}
