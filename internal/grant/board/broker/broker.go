package broker

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/weaken"
)

// Arg is the first argument of a process that is the board.
const Arg = "board-server"

// Limits of one container. Closing handles does not reset them.
const (
	maxHandles = 128       // with those that it has made by narrowing
	maxServers = 64        // at once
	maxLabels  = 256 << 10 // bytes of labels of all of them
)

// fileLimit is how many descriptors the process may have, where the kernel lets it.
const fileLimit = 1 << 20

// Main is the process. Its descriptor 3 is the socket at which agents connect, or, with the argument nextArg, one to the
// process before, which hands over. It ends when nobody has a handle and no agent is connected.
func Main() int {
	begin := start
	if len(os.Args) > 2 && os.Args[2] == nextArg {
		begin = succeed
	}
	b, err := begin(3)
	if err == nil {
		err = b.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "board:", err)
		return 1
	}
	return 0
}

// start makes the process's state, with the socket at which agents connect.
func start(socket int) (*broker, error) {
	files, confinement, err := prepare()
	if err != nil {
		return nil, err
	}
	return newBroker(socket, files, confinement)
}

// prepare confines the process. It returns how many descriptors it may have, and its confinement.
func prepare() (files int, confinement string, err error) {
	weaken.Mark(dies, 0) // reads the program's file, which a confined process cannot
	limit := unix.Rlimit{Cur: fileLimit, Max: fileLimit}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) != nil { // without the capability for it, the present limit must do
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return 0, "", err
		}
	}
	// Others of the same user cannot look into it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, "", err
	}
	confinement, err = confine.Apply(confine.Leave{})
	return int(min(limit.Cur, fileLimit)), confinement, err
}

// A peer is a source of events. Its method handles one event, and no more than one request.
type peer interface {
	ready(b *broker, events uint32)
}

// entry is a peer with a number, which distinguishes its events from those of an earlier peer with the same
// descriptor.
type entry struct {
	peer
	number int32
}

// broker is the process's whole state.
type broker struct {
	ep          int
	socket      int // at which agents connect; 0 for none
	match       *board.Board
	peers       map[int]entry // by descriptor
	last        int32         // entry's number
	most        int           // peers
	containers  map[string]*container
	servers     map[board.ServerID]*server
	agents      int
	rules       board.Rules
	confinement string
	made        uint64 // connections
	ended       bool
	buf         []byte
	oob         []byte
	paused      listener // accepts nothing until resume; 0 for none
	resume      time.Time

	wake   int                 // an eventfd: something is in closed
	mu     sync.Mutex          // guards closed
	closed []board.Realm       // of descriptors that were closed aside
	aside  map[board.Realm]int // descriptors that are being closed
}

func newBroker(socket, files int, confinement string) (*broker, error) {
	b, err := emptyBroker(files, confinement)
	if err != nil {
		return nil, err
	}
	return b, b.listen(socket)
}

// emptyBroker makes a state without a socket for agents.
func emptyBroker(files int, confinement string) (*broker, error) {
	// Go's runtime makes descriptors of its own with the first timer, and dies when there is none: so it makes them now.
	time.AfterFunc(time.Hour, func() {}).Stop()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	b := &broker{
		ep: ep, match: board.New(nil), peers: map[int]entry{}, most: files - 64, containers: map[string]*container{}, servers: map[board.ServerID]*server{},
		confinement: confinement, aside: map[board.Realm]int{}, buf: make([]byte, maxMessage+1), oob: make([]byte, unix.CmsgSpace(4)),
	}
	if b.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	return b, b.add(b.wake, waker(b.wake), unix.EPOLLIN)
}

// listen accepts agents at a socket.
func (b *broker) listen(socket int) error {
	unix.CloseOnExec(socket)
	if err := unix.SetNonblock(socket, true); err != nil {
		return err
	}
	b.socket = socket
	return b.add(socket, listener(socket), unix.EPOLLIN)
}

// setRules sets the rules between realms.
func (b *broker) setRules(rules board.Rules) {
	b.rules = rules
	b.match.SetOpen(rules.Open)
}

// run handles events until the process is not needed any more.
func (b *broker) run() error {
	var events [64]unix.EpollEvent
	for !b.ended {
		n, err := unix.EpollWait(b.ep, events[:], b.pause())
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:n] {
			if p, ok := b.peers[int(e.Fd)]; ok && p.number == e.Pad && !b.ended { // an event before may have closed it
				b.handle(p.peer, e.Events)
			}
		}
		b.acceptAgain()
	}
	return nil
}

// acceptPause is how long no agent is accepted after a shortage of descriptors. The agent that could
// not be accepted waits in the queue, and epoll would report it without end.
const acceptPause = 100 * time.Millisecond

// pause returns for how many milliseconds epoll may wait; -1 means for ever.
func (b *broker) pause() int {
	if b.paused == 0 {
		return -1
	}
	return int(max(0, time.Until(b.resume))/time.Millisecond) + 1
}

// acceptAgain ends a pause that is over.
func (b *broker) acceptAgain() {
	if b.paused != 0 && !time.Now().Before(b.resume) {
		b.await(int(b.paused), unix.EPOLLIN)
		b.paused = 0
	}
}

// handle handles one event. A panic removes the event's peer, and affects nobody else.
func (b *broker) handle(p peer, events uint32) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fmt.Fprintf(os.Stderr, "board: %v\n%s\n", r, debug.Stack())
		switch p := p.(type) {
		case *handle:
			p.close(b)
		case *server:
			p.close(b)
		}
	}()
	p.ready(b, events)
}

func (b *broker) add(fd int, p peer, events uint32) error {
	if len(b.peers) >= b.most {
		return fmt.Errorf("%w: the board has %d descriptors", board.ErrFull, len(b.peers))
	}
	b.last++
	if err := unix.EpollCtl(b.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: b.last}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	b.peers[fd] = entry{p, b.last}
	return nil
}

// await changes the events of a descriptor.
func (b *broker) await(fd int, events uint32) {
	_ = unix.EpollCtl(b.ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: b.peers[fd].number})
}

// remove closes a peer's descriptor. A next process that has not taken over may have a duplicate, and epoll would still report it.
func (b *broker) remove(fd int) {
	delete(b.peers, fd)
	_ = unix.EpollCtl(b.ep, unix.EPOLL_CTL_DEL, fd, nil)
	_ = unix.Close(fd)
}

// A program can leave a descriptor in a socket, the last one of a file with a slow close, such as a lingering TCP
// socket. Closing it blocks. maxAside bounds a realm's blocked closes; beyond it the realm gets no more handles and
// connections.
const maxAside = 256

// closeAside closes a socket that a program may have sent to without anybody waiting for it.
func (b *broker) closeAside(realm board.Realm, fd int) {
	b.aside[realm]++
	go func() {
		_ = unix.Close(fd)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.closed = append(b.closed, realm)
		_, _ = unix.Write(b.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
}

// waker is where closeAside tells that it is done.
type waker int

func (w waker) ready(b *broker, _ uint32) {
	_, _ = unix.Read(int(w), make([]byte, 8))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, realm := range b.closed {
		if b.aside[realm]--; b.aside[realm] == 0 {
			delete(b.aside, realm)
		}
	}
	b.closed = b.closed[:0]
}

// endIfIdle ends the process when nobody needs it.
func (b *broker) endIfIdle() {
	if b.agents == 0 && len(b.containers) == 0 {
		b.ended = true
	}
}

// listener is the socket at which agents connect.
type listener int

func (l listener) ready(b *broker, _ uint32) {
	fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		if shortage.Is(err) {
			b.await(int(l), 0)
			b.paused, b.resume = l, time.Now().Add(acceptPause)
		}
		return
	}
	if err := b.add(fd, agent(fd), unix.EPOLLIN); err != nil {
		_ = unix.Close(fd)
		return
	}
	b.agents++
}

// A container has handles, and servers that were started with them. All of them end with its process.
type container struct {
	id      string
	pidfd   int // -1 until it is bound
	handles map[*handle]bool
	servers map[*server]bool
	labels  int // bytes, of all of them
}

// ready is called when the container's process has ended.
func (c *container) ready(b *broker, _ uint32) { b.revoke(c) }

// revoke ends all that a container has on the board. Connections are not the board's.
func (b *broker) revoke(c *container) {
	for h := range c.handles {
		h.close(b)
	}
	for s := range c.servers {
		s.close(b)
	}
	b.forget(c)
}

// forget forgets a container.
func (b *broker) forget(c *container) {
	if b.containers[c.id] != c {
		return
	}
	delete(b.containers, c.id)
	if c.pidfd >= 0 {
		b.remove(c.pidfd)
	}
	b.endIfIdle()
}

// left forgets a container without handles, servers and pending closes.
func (b *broker) left(c *container) {
	if c.pidfd < 0 && len(c.handles)+len(c.servers) == 0 {
		b.forget(c)
	}
}

// size is how many bytes labels have.
func size(labels map[string]string) (n int) {
	for k, v := range labels {
		n += len(k) + len(v)
	}
	return n
}

// pair makes two connected sockets. The first one is the board's.
func pair(kind int) (own, other int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("%w: socketpair: %w", board.ErrFull, err)
	}
	return fds[0], fds[1], nil
}

// sendBuffer bounds the bytes in a socket for a program that does not read.
const sendBuffer = 64 << 10

// room bounds the send buffer of the board's end of a socket, and returns how many bytes may wait there before the
// board stops sending: as many as epoll allows before it reports the socket as not writable.
func room(fd int) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	return n / 4, err
}

// waits returns how many bytes wait to be read at the other end.
func waits(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// send sends one message, and a descriptor unless that is -1. It does not wait.
func send(fd int, body []byte, descriptor int) error {
	var oob []byte
	if descriptor >= 0 {
		oob = unix.UnixRights(descriptor)
	}
	return unix.Sendmsg(fd, body, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}
