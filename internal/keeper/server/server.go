// Package server is the keeper: parent of every container process, owner of its
// standard streams, witness of its end.
//
// It must not know containers' meaning, orchestrators, or what a spec is; it
// runs what it is told and imports next to nothing, because a node has one and
// it must stay small. One event loop does all: no lock, no goroutine per
// stream. Start reading at Main, then launch.go, then exits.go.
package server

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/stdio"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// Program is what the keeper calls its own version.
const Program = "1"

// handler is told of the events of one descriptor.
type handler interface {
	ready(s *Server, events uint32)
}

// Server is the keeper's whole state. Only the loop touches it, but for done.
type Server struct {
	dir      string
	ep       int
	listenFD int
	handlers []handler // by descriptor
	started  time.Time

	procs    map[wire.Ref]*proc
	bySerial map[uint64]*proc
	byPid    map[int]*proc
	serial   uint64
	lost     uint64 // of processes forgotten since

	conns    map[int]*conn
	streams  uint64                // the last stream's number
	commands map[int]*command      // running, by pid
	begunNow map[*command]struct{} // and those not running yet
	plans    map[*planned]struct{} // launches by a plan under way
	progress progress
	spent    []int                         // children that have made others to go on, until they are reaped
	launcher atomic.Pointer[fork.Launcher] // nil when there is none
	inFlight int                           // commands begun and not ended
	begun    uint64                        // commands begun ever
	parked   []func()                      // launches that wait for an upgrade to fail

	nest    nest
	waiter  *kernel.Waiter
	stray   stray
	journal *stdio.Journal
	pump    *stdio.Pump
	watch   watcher
	parts   parts
	upgrade *upgrade
	thaw    func() // what an upgrade brings back last
	quit    bool

	in     kernel.Receiver
	outgo  kernel.Sender
	blob   []byte // room for a record
	litter int    // requests and ends since the last tidying
	wakeFD int
	mu     sync.Mutex // guards done
	done   []func()   // what other goroutines want the loop to do
}

// Main runs the keeper of the pair in dir. The nest's socket is at descriptor 3;
// resume is the memory file of an upgrade, or -1. It returns the exit status.
func Main(dir string, resume int) int {
	kernel.SmallPages()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fatal("subreaper", err)
	}
	s := &Server{
		dir: dir, ep: -1, listenFD: -1, started: time.Now(),
		procs: map[wire.Ref]*proc{}, bySerial: map[uint64]*proc{}, byPid: map[int]*proc{},
		conns: map[int]*conn{}, commands: map[int]*command{}, begunNow: map[*command]struct{}{}, plans: map[*planned]struct{}{},
		parts: parts{},
	}
	if err := s.open(); err != nil {
		return fatal("open "+dir, err)
	}
	if err := s.begin(resume); err != nil {
		return fatal("begin", err)
	}
	for !s.quit {
		s.turn()
	}
	return 0
}

func fatal(what string, err error) int {
	say(what + ": " + err.Error())
	return 1
}

func say(text string) { _ = kernel.WriteAll(2, []byte("keeper: "+text+"\n")) }

// open makes what the loop stands on.
func (s *Server) open() (err error) {
	if s.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if s.waiter, err = kernel.NewWaiter(); err != nil {
		return err
	}
	if s.journal, err = stdio.OpenJournal(s.dir + "/journal"); err != nil {
		return err
	}
	s.pump = stdio.NewPump(s.journal)
	for _, d := range []string{"/io", "/exits"} {
		if err := unix.Mkdir(s.dir+d, 0o700); err != nil && err != unix.EEXIST {
			return err
		}
	}
	s.add(s.wakeFD, wake{}, unix.EPOLLIN)
	s.add(s.waiter.FD, &s.stray, unix.EPOLLIN)
	return s.watch.open(s)
}

// begin takes over what the nest or an earlier self left, finishes the
// transaction that was cut short, and only then lets events in.
func (s *Server) begin(resume int) error {
	s.nest.fd = kernel.NestFD
	unix.CloseOnExec(kernel.NestFD)
	items, err := s.inherit(resume)
	if err != nil {
		return err
	}
	for i := range items {
		s.adoptItem(&items[i])
	}
	s.readExits()
	if s.pump.Recover(s.source) {
		say("a transaction was redone")
	}
	if s.listenFD < 0 {
		return unix.ENOTCONN
	}
	s.add(s.listenFD, listener{}, unix.EPOLLIN)
	if s.nest.fd >= 0 {
		s.add(s.nest.fd, &s.nest, unix.EPOLLIN)
	}
	for _, p := range s.procs {
		p.carryOn(s)
	}
	s.progress.open()
	s.newLauncher(nil)
	s.waiter.Arm()
	s.nest.send(s, wire.KindNestServing, nil, nil)
	if s.thaw != nil {
		s.thaw()
		s.thaw = nil
	}
	return nil
}

// socketKey is the item of the listening socket; processes' keys are paths.
const socketKey = wire.SocketKey

// add watches a descriptor.
func (s *Server) add(fd int, h handler, events uint32) {
	for fd >= len(s.handlers) {
		s.handlers = append(s.handlers, make([]handler, max(64, len(s.handlers)))...)
	}
	s.handlers[fd] = h
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		say("epoll add: " + err.Error())
	}
}

// change watches a descriptor for other events.
func (s *Server) change(fd int, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	_ = unix.EpollCtl(s.ep, unix.EPOLL_CTL_MOD, fd, &ev)
}

// remove stops watching a descriptor; it stays open.
func (s *Server) remove(fd int) {
	if fd >= 0 && fd < len(s.handlers) && s.handlers[fd] != nil {
		s.handlers[fd] = nil
		_ = unix.EpollCtl(s.ep, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// drop stops watching a descriptor and closes it.
func (s *Server) drop(fd *int) {
	if *fd >= 0 {
		s.remove(*fd)
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// turn handles one batch of events. A handler can close another's descriptor,
// so that each must bear being called for nothing.
func (s *Server) turn() {
	var evs [64]unix.EpollEvent
	n, err := unix.EpollWait(s.ep, evs[:], s.parts.wait(time.Now))
	if err != nil {
		return
	}
	for _, ev := range evs[:n] {
		if h := s.handlers[ev.Fd]; h != nil {
			h.ready(s, ev.Events)
		}
	}
	s.parts.write(s)
	s.endIfIdle()
	s.tidy()
}

// churn is how many requests and ends pass before the garbage is taken out. Go
// by itself would let a megabyte of it pile up, whatever it is told.
const churn = 32

func (s *Server) tidy() {
	if s.litter >= churn {
		s.litter = 0
		runtime.GC()
	}
}

// post has the loop call fn soon; any goroutine may call it.
func (s *Server) post(fn func()) {
	s.mu.Lock()
	s.done = append(s.done, fn)
	s.mu.Unlock()
	kernel.Poke(s.wakeFD)
}

// wake runs what was posted.
type wake struct{}

func (wake) ready(s *Server, _ uint32) {
	kernel.Unpoke(s.wakeFD)
	s.mu.Lock()
	todo := s.done
	s.done = nil
	s.mu.Unlock()
	for _, fn := range todo {
		fn()
	}
}

// endIfIdle ends a keeper that has lost its nest and has nothing left: what is
// started later belongs to another pair.
func (s *Server) endIfIdle() {
	if s.nest.fd >= 0 || len(s.procs) > 0 || s.inFlight > 0 || s.upgrade != nil {
		return
	}
	for _, c := range s.conns {
		if len(c.out) > 0 {
			return
		}
	}
	_ = unix.Unlink(s.dir + "/keeper.sock")
	_ = unix.Unlink(s.dir + "/journal")
	_ = unix.Rmdir(s.dir + "/io")
	_ = unix.Rmdir(s.dir + "/exits")
	_ = unix.Rmdir(s.dir)
	s.quit = true
}

// status fills the answer to KindStatus.
func (s *Server) status() *wire.Status {
	st := &wire.Status{
		Program: Program, KeeperPid: os.Getpid(), NestPid: s.nest.pid,
		Started: s.started.UnixNano(), Lost: s.lost,
	}
	for _, p := range s.procs {
		if p.phase == starting {
			continue
		}
		st.Processes++
		st.Lost += p.lost
		if p.exit != nil && !p.acked {
			st.Pending++
		}
	}
	return st
}
