// Package server is the keeper: it is the parent of every container process, owns
// their standard streams, and records their exits.
//
// It must not know containers, orchestrators or specs. It runs commands and plans for agents and
// imports next to nothing, because a node has one keeper and that must stay small. One event loop
// does everything, without locks and without a goroutine per stream. Start reading at Main, then
// launch.go, then exits.go.
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

// Release is the keeper's version for people; the release build sets it (-ldflags -X). Without one it is a number.
var Release = "1" //nolint:gochecknoglobals // only the linker changes it

// handler handles the events of one descriptor.
type handler interface {
	ready(s *Server, events uint32)
}

// Server is the keeper's whole state. Only the loop's goroutine uses it, except for
// done.
type Server struct {
	dir      string
	ep       int
	listenFD int
	handlers []handler // indexed by descriptor
	started  time.Time

	procs    map[wire.Ref]*proc
	bySerial map[uint64]*proc
	byPid    map[int]*proc
	byKey    map[string]*proc
	serial   uint64
	lost     uint64 // lost output bytes of processes that have been forgotten

	heldFiles map[string][]int // files that we hold for agents, by name

	conns         map[int]*conn
	lastStream    uint64                // number of the last stream
	commands      map[int]*command      // started and not reaped, by pid
	unfinished    map[*command]struct{} // begun and not done, started or not
	plans         map[*planned]struct{} // launches by a plan that are not complete
	progress      progress
	firstChildren []int                         // pids of first children that have made a second one, until they are reaped
	launcher      atomic.Pointer[fork.Launcher] // nil if there is none
	launcherPause time.Duration                 // the last one before another attempt to start it
	inFlight      int                           // commands and launches begun and not done
	begun         uint64                        // commands and launches begun since the start
	parked        []parkedRequest               // requests that wait in case the upgrade fails

	nest         nest
	renewal      renewal
	copying      bool      // some client is to be sent copies
	copyAt       time.Time // when
	delays       delays
	waiter       *kernel.Waiter
	stray        stray
	journal      *stdio.Journal
	pump         *stdio.Pump
	watch        watcher
	partialLines partialLines
	upgrade      *upgrade
	afterResume  func() // restores connections and streams after an upgrade
	quit         bool

	in      kernel.Receiver
	sender  kernel.Sender
	blob    []byte // buffer for a record
	sinceGC int    // requests and exits since the last garbage collection
	wakeFD  int
	mu      sync.Mutex // guards done
	done    []func()   // functions that other goroutines want the loop to call
}

// Main runs the keeper of the pair in dir. Descriptor 3 is the socket to the nest; resume is the
// memory file of an upgrade, or -1. Main returns the exit status.
func Main(dir string, resume int) int {
	kernel.SmallPages()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fatal("subreaper", err)
	}
	s := &Server{
		dir: dir, ep: -1, listenFD: -1, started: time.Now(),
		procs: map[wire.Ref]*proc{}, bySerial: map[uint64]*proc{}, byPid: map[int]*proc{}, byKey: map[string]*proc{}, heldFiles: map[string][]int{},
		conns: map[int]*conn{}, commands: map[int]*command{}, unfinished: map[*command]struct{}{}, plans: map[*planned]struct{}{},
		partialLines: partialLines{},
	}
	if err := s.open(); err != nil {
		return fatal("open "+dir, err)
	}
	if err := s.begin(resume); err != nil {
		return fatal("begin", err)
	}
	kernel.OpenPoller()
	for !s.quit {
		s.turn()
	}
	return 0
}

func fatal(what string, err error) int {
	logLine(what + ": " + err.Error())
	return 1
}

func logLine(text string) { _ = kernel.WriteAll(2, []byte("keeper: "+text+"\n")) }

// open makes the descriptors and directories that the loop needs.
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
	s.watch.open(s)
	return nil
}

// begin takes over the state from the nest or from the program before an upgrade, completes the
// journal's unfinished transaction, and only then handles events.
func (s *Server) begin(resume int) error {
	s.nest.fd = kernel.NestFD
	unix.CloseOnExec(kernel.NestFD)
	items, err := s.inherit(resume)
	if err != nil {
		return err
	}
	var clients resumption
	for i := range items {
		if !clients.take(&items[i]) {
			s.adoptItem(&items[i])
		}
	}
	clients.restore(s)
	s.readExits()
	if s.pump.Recover(s.source) {
		logLine("completed an output transaction that the last keeper left unfinished")
	}
	if s.listenFD < 0 {
		return unix.ENOTCONN
	}
	s.add(s.listenFD, listener{}, unix.EPOLLIN)
	if s.nest.fd >= 0 {
		s.add(s.nest.fd, &s.nest, unix.EPOLLIN)
	}
	for _, p := range s.procs {
		p.resumeWatching(s)
	}
	s.progress.open()
	s.newLauncher(nil)
	s.waiter.Arm()
	s.nest.send(s, wire.KindNestServing, nil)
	if s.afterResume != nil {
		s.afterResume()
		s.afterResume = nil
	}
	return nil
}

// socketKey is the key of the listening socket's item; the keys of processes are
// paths.
const socketKey = wire.SocketKey

// add starts watching a descriptor.
func (s *Server) add(fd int, h handler, events uint32) {
	for fd >= len(s.handlers) {
		s.handlers = append(s.handlers, make([]handler, max(64, len(s.handlers)))...)
	}
	s.handlers[fd] = h
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		logLine("epoll add: " + err.Error())
	}
}

// change changes the watched events of a descriptor.
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

// turn handles one batch of events. A handler may close the descriptor of another one
// in the batch, so each handler must cope with being called without an event.
func (s *Server) turn() {
	var evs [64]unix.EpollEvent
	n, err := unix.EpollWait(s.ep, evs[:], s.wait())
	if err != nil {
		return
	}
	for _, ev := range evs[:n] {
		if h := s.handlers[ev.Fd]; h != nil {
			h.ready(s, ev.Events)
		}
	}
	s.delays.call(time.Now())
	s.partialLines.write(s)
	s.watch.poll(s)
	sendCopies(s)
	s.renewal.renew(s)
	s.endIfIdle()
	s.upgradeIfIdle()
	s.collectGarbage()
}

// wait returns for how many milliseconds the loop may sleep; -1 means for ever.
func (s *Server) wait() int {
	least := s.partialLines.wait(time.Now)
	renewal := -1
	if s.upgrade == nil {
		renewal = s.renewal.wait(time.Now())
	}
	for _, ms := range []int{s.watch.wait(), copyWait(s), renewal, s.delays.wait(time.Now())} {
		if ms >= 0 && (least < 0 || ms < least) {
			least = ms
		}
	}
	return least
}

// gcInterval is how many requests and exits may pass before the next garbage collection. Go's own
// pacing would let a megabyte of garbage grow first, with all settings.
const gcInterval = 32

func (s *Server) collectGarbage() {
	if s.sinceGC >= gcInterval {
		s.sinceGC = 0
		runtime.GC()
	}
}

// post has the loop call fn soon. Any goroutine may call post.
func (s *Server) post(fn func()) {
	s.mu.Lock()
	s.done = append(s.done, fn)
	s.mu.Unlock()
	kernel.Poke(s.wakeFD)
}

// wake calls the functions that were posted.
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

// endIfIdle ends a keeper that has no nest, could not start one, and has nothing left to supervise.
// Later processes belong to another pair.
func (s *Server) endIfIdle() {
	if s.nest.fd >= 0 || s.renewal.tried.IsZero() || len(s.procs) > 0 || s.inFlight > 0 || s.upgrade != nil {
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

// status makes the answer to KindStatus.
func (s *Server) status() *wire.Status {
	st := &wire.Status{
		Program: Release, KeeperPid: os.Getpid(), NestPid: s.nest.pid,
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
