// Package pages has two programs. The first one puts the processes of a container to sleep. The second one, the
// page server, restores their memory when they wake. It outlives the agent. Start at Main.
package pages

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/uffd"
)

// The first arguments of the program, and its descriptors.
const (
	ArgSleep = "sleep"
	ArgServe = "serve"

	fdSocket = 3 // sleep: the agent; serve: agents connect here
	fdPages  = 4
	fdIndex  = 5
	fdLedger = 6
	fdHot    = 7 // serve: the pages that were used first in the last wakes
	fdSpaces = 8 // serve: the first of the descriptors of address spaces
)

// Main is the program.
func Main(args []string) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == ArgSleep:
		err = sleepMain()
	case len(args) == 2 && args[0] == ArgServe:
		var n int
		if _, err = fmt.Sscan(args[1], &n); err == nil {
			err = serveMain(n)
		}
	default:
		err = errors.New("this program is started by the agent: it puts containers to sleep and wakes them")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "longshore-pages:", err)
		return 1
	}
	return 0
}

// sleepMain is the process that puts a container to sleep.
func sleepMain() error {
	conn, err := NewConn(os.NewFile(fdSocket, "agent"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	files := open()
	var l *ledger.Ledger
	if err = ledger.Lock(files.ledger); err == nil {
		l, err = ledger.Create(files.ledger)
	}
	if err == nil {
		s := &sleeper{conn: conn, pages: files.pages, indexed: files.index, ledger: l}
		err = s.putToSleep()
	}
	if err != nil {
		_ = conn.Send(Message{Error: err.Error(), Refused: errors.Is(err, errRefused), Full: errors.Is(err, ledger.ErrFull) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)})
	}
	return err
}

type files struct{ pages, index, ledger *os.File }

func open() files {
	return files{os.NewFile(fdPages, "pages"), os.NewFile(fdIndex, "index"), os.NewFile(fdLedger, "ledger")}
}

// maxIndex bounds the size of an index in bytes.
const maxIndex = 1 << 30

// serveMain is the page server, with so many address spaces.
func serveMain(spaces int) error {
	f := open()
	data, err := io.ReadAll(io.LimitReader(f.index, maxIndex))
	if err != nil {
		return err
	}
	x, err := ledger.Decode(data)
	if err != nil {
		return err
	}
	// The program that has put the container to sleep restores its pages if its agent dies.
	if err := ledger.Lock(f.ledger); err != nil {
		return err
	}
	l, err := ledger.Open(f.ledger)
	if err != nil {
		return err
	}
	r, err := ledger.NewReader(f.pages)
	if err != nil {
		return err
	}
	queue := readHot(os.NewFile(fdHot, "hot"))
	listener, err := net.FileListener(os.NewFile(fdSocket, "agents"))
	if err != nil {
		return err
	}
	// From here on it handles content of containers.
	if _, err := confine.Apply(confine.Leave{}); err != nil {
		return err
	}
	fds := make([]uffd.Space, spaces)
	for i := range fds {
		fds[i] = uffd.Space(fdSpaces + i)
	}
	s, err := newServer(x, l, r, fds)
	if err != nil {
		return err
	}
	s.hot = newHot(queue)
	a := &agents{ledger: l}
	s.report = a.send
	if l.Phase() < ledger.Waking {
		if err := s.preload(); err != nil {
			return err
		}
	}
	go a.accept(listener)
	return s.serve(func() { a.done(s.hot.touched) })
}

// serve restores pages until an agent ends the process.
func (s *server) serve(done func()) error {
	reported := false
	for {
		if s.missing() == 0 && !reported {
			reported = true
			s.ledger.Reach(ledger.In)
			done()
		}
		timeout, err := s.prefetch()
		if err != nil {
			s.fail(StepDamaged, err)
			return err
		}
		if _, err := s.poll(timeout, nil); err != nil {
			s.fail(StepDamaged, err)
			return err
		}
	}
}

// preload restores the pages of the queue before the processes run, for a limited time. The processes need them first, and a
// fault costs more than a page that is already there.
func (s *server) preload() error {
	for begun := time.Now(); time.Since(begun) < preloadTime; {
		timeout, err := s.prefetch()
		if err != nil {
			return err
		}
		if len(s.hot.queue) == 0 && len(s.ahead.under) == 0 {
			break
		}
		if timeout != 0 {
			timeout = int(preloadTime / time.Millisecond)
		}
		if _, err := s.poll(timeout, nil); err != nil {
			return err
		}
	}
	s.hot.last = time.Now()
	s.hot.begun = s.hot.last
	return nil
}

// complete restores all pages.
func (s *server) complete() error {
	for s.missing() > 0 {
		timeout, err := s.prefetch()
		if err == nil {
			_, err = s.poll(timeout, nil)
		}
		if err != nil {
			return err
		}
	}
	s.ledger.Reach(ledger.In)
	return nil
}

// agents are the connections of a page server.
type agents struct {
	ledger *ledger.Ledger

	mu    sync.Mutex // guards conns, last
	conns []*Conn
	last  []Message // messages that a new agent must know
}

func (a *agents) accept(l net.Listener) {
	for {
		c, err := shortage.Accept(l.Accept)
		if err != nil {
			fmt.Fprintln(os.Stderr, "longshore-pages: accept:", err)
			return
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			_ = c.Close()
			continue
		}
		conn := &Conn{u}
		a.mu.Lock()
		a.conns = append(a.conns, conn)
		_ = conn.Send(a.counted(Message{Step: StepServing}))
		for _, t := range a.last {
			_ = conn.Send(a.counted(t))
		}
		a.mu.Unlock()
		go a.serve(conn)
	}
}

func (a *agents) serve(c *Conn) {
	for {
		var ask Ask
		fds, err := c.Receive(&ask)
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if err != nil {
			_ = c.Close()
			return
		}
		if ask.Step == AskEnd {
			os.Exit(0)
		}
	}
}

func (a *agents) counted(t Message) Message {
	t.Faults, t.Pages = a.ledger.Counts()
	return t
}

// done sends StepDone.
func (a *agents) done(touched []Touch) { a.sendAll(Message{Step: StepDone, Touched: touched}, -1) }

// send sends a message to all agents.
func (a *agents) send(step string, err error, fd uffd.Space) {
	t := Message{Step: step}
	if err != nil {
		t.Error = err.Error()
	}
	a.sendAll(t, fd)
}

func (a *agents) sendAll(t Message, fd uffd.Space) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t = a.counted(t)
	var fds []int
	if fd >= 0 {
		fds = append(fds, int(fd))
	} else {
		a.last = append(a.last, t)
	}
	for _, c := range a.conns {
		_ = c.Send(t, fds...)
	}
}
