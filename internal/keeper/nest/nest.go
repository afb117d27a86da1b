// Package nest is the keeper's parent: it holds what must not die with the
// keeper (descriptors and records it does not read), inherits the keeper's
// children, and starts the next keeper.
//
// It must not know containers, formats or agents, does next to nothing, and is
// never upgraded. Start reading at Main.
package nest

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// ListenFD is the descriptor at which a nest finds the socket for agents.
const ListenFD = 3

// held is one item.
type held struct {
	roles []wire.Role
	fds   []int
	pids  []int
	blob  []byte
}

// nest is the whole state.
type nest struct {
	dir      string
	binary   string // "": our own
	ep       int
	items    map[string]*held
	pids     map[int]int64 // known children → when they ended, 0 before
	waiter   *kernel.Waiter
	sock     int // to the keeper, -1 when there is none
	keeper   int // its pid
	keeperFD int // its pidfd
	started  time.Time
	failures int
	served   bool // the last keeper got as far as serving
	restarts uint64
	quit     bool
	in       kernel.Receiver
	outgo    kernel.Sender
	litter   int // frames since the garbage was taken out
}

// churn is how many frames pass before the garbage is taken out. Go by itself
// would let a megabyte of it pile up, whatever it is told.
const churn = 128

// What an epoll event is about, in its Pad; Fd has the rest.
const (
	onSocket = iota
	onKeeper
	onWaiter
	onChild // Fd is the pid
)

// Main runs a nest for the pair that lives in dir until it is told to quit. It
// returns the exit status.
func Main(dir string) int {
	n := &nest{dir: dir, items: map[string]*held{}, pids: map[int]int64{}, sock: -1, keeperFD: -1}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1
	}
	var err error
	if n.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return 1
	}
	if n.waiter, err = kernel.NewWaiter(); err != nil {
		return 1
	}
	if n.watch(n.waiter.FD, onWaiter, unix.EPOLLIN, 0) != nil {
		return 1
	}
	// It waits for agents while there is no keeper, too.
	unix.CloseOnExec(ListenFD)
	n.items[wire.SocketKey] = &held{roles: []wire.Role{wire.RoleSocket}, fds: []int{ListenFD}}
	for !n.quit {
		if n.keeper == 0 {
			if n.failures > maxYoung {
				n.wait(n.pause())
			}
			if !n.start() {
				continue
			}
		}
		n.wait(-1)
	}
	return 0
}

// boundLog starts the log anew when it has grown; appending starts at its end
// then.
func boundLog() {
	var st unix.Stat_t
	const most = 1 << 20
	if unix.Fstat(2, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > most {
		_ = unix.Ftruncate(2, 0)
	}
}

func say(text string) { _ = kernel.WriteAll(2, []byte("nest: "+text+"\n")) }

// pause is how long to wait before the next keeper, in milliseconds, doubling
// while keepers die before they serve. One that served is missed by somebody:
// the next comes soon.
func (n *nest) pause() int {
	if n.served {
		return 10
	}
	return min(10<<min(n.failures-maxYoung, 9), 5000)
}

func (n *nest) watch(fd, what int, events uint32, data int) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(data), Pad: int32(what)}
	return unix.EpollCtl(n.ep, unix.EPOLL_CTL_ADD, fd, &ev)
}

// start makes a keeper and gives it everything.
func (n *nest) start() bool {
	boundLog()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return n.failed("socketpair", err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	n.started, n.served = time.Now(), false
	pid, fd, err := n.fork(pair[1])
	if err != nil {
		_ = unix.Close(pair[0])
		return n.failed("start keeper", err)
	}
	n.sock, n.keeper, n.keeperFD = pair[0], pid, fd
	n.waiter.Arm()
	_ = unix.SetsockoptInt(n.sock, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	if n.watch(n.sock, onSocket, unix.EPOLLIN, 0) != nil || n.watch(n.keeperFD, onKeeper, unix.EPOLLIN, 0) != nil {
		say("epoll failed")
	}
	n.handOver()
	return true
}

func (n *nest) fork(sock int) (pid, pidfd int, err error) {
	tries := []string{"/proc/self/exe"}
	if n.binary != "" {
		tries = []string{n.binary, "/proc/self/exe"}
	}
	for _, path := range tries {
		file, done := kernel.Shielded(path)
		pid, pidfd, err = kernel.Start(file, []string{"longshore-keeper", "keeper", n.dir}, kernel.SmallEnv(2), []int{0, 1, 2, sock})
		done()
		if err == nil {
			return pid, pidfd, nil
		}
		say("exec " + path + ": " + err.Error())
	}
	return 0, -1, err
}

func (n *nest) failed(what string, err error) bool {
	say(what + ": " + err.Error())
	n.failures++
	return false
}

// handOver tells a new keeper all that is held. The keeper reads nothing else
// before, so that waiting for room cannot lock up.
func (n *nest) handOver() {
	hello := &wire.NestHello{Version: wire.NestVersion, Pid: os.Getpid(), Restarts: n.restarts}
	if n.send(wire.KindNestHello, hello, nil) != nil {
		return
	}
	for key, h := range n.items {
		it := &wire.Item{Key: key, Roles: h.roles, Pids: h.pids, Blob: h.blob}
		if n.send(wire.KindNestItem, it, h.fds) != nil {
			return
		}
	}
	_ = n.send(wire.KindNestReady, nil, nil)
}

func (n *nest) send(k wire.Kind, m wire.Message, fds []int) error {
	return n.outgo.Send(kernel.Send, n.sock, wire.Header{Kind: k}, m, fds)
}

// wait handles one batch of events; timeout is in milliseconds.
func (n *nest) wait(timeout int) {
	var evs [16]unix.EpollEvent
	k, err := unix.EpollWait(n.ep, evs[:], timeout)
	if err != nil {
		return
	}
	for _, ev := range evs[:k] {
		switch ev.Pad {
		case onSocket:
			if n.sock >= 0 {
				n.receive()
			}
		case onKeeper:
			if n.keeperFD >= 0 {
				n.keeperDied()
			}
		case onWaiter:
			kernel.Unpoke(n.waiter.FD)
			n.reapStrangers()
		case onChild:
			n.note(int(ev.Fd))
		}
	}
}

// keeperDied takes in what the keeper still said, and its body.
func (n *nest) keeperDied() {
	e, err := kernel.Peek(n.keeper, false)
	if err == nil && e.Pid == 0 {
		return // not yet
	}
	for n.sock >= 0 && n.receive() {
	}
	n.forgetSocket()
	kernel.Reap(n.keeper)
	_ = unix.Close(n.keeperFD)
	n.keeper, n.keeperFD = 0, -1
	n.restarts++
	if n.quit {
		return
	}
	if time.Since(n.started) > time.Second {
		n.failures = 0
	} else {
		n.failures++
	}
	say("keeper died, wait status " + kernel.Itoa(int(e.Wait)))
	n.waiter.Arm()
}

// maxYoung keepers in a row may die within a second of their start before the
// next one is delayed.
const maxYoung = 16

func (n *nest) forgetSocket() {
	if n.sock >= 0 {
		_ = unix.Close(n.sock)
		n.sock = -1
	}
}

// receive handles one frame of the keeper's, and reports false when there is
// none.
func (n *nest) receive() bool {
	frame, fds, err := n.in.Recv(n.sock, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if err != nil || len(frame) == 0 {
		n.forgetSocket()
		return false
	}
	h, inline, ok := wire.ParseHeader(frame)
	if !ok {
		kernel.CloseAll(fds)
		return true
	}
	if n.litter++; n.litter >= churn {
		n.litter = 0
		runtime.GC()
	}
	body, fds, err := kernel.Body(h, inline, fds)
	if err != nil || !n.handle(h.Kind, body, fds) {
		say("a frame that cannot be read")
		kernel.CloseAll(fds)
	}
	return true
}

// handle carries out one frame. It takes the descriptors when it reports true.
func (n *nest) handle(kind wire.Kind, body []byte, fds []int) bool {
	switch kind {
	case wire.KindNestPut:
		var it wire.Item
		return wire.Unmarshal(body, &it) && len(it.Roles) == len(fds) && n.put(&it, fds)
	case wire.KindNestDrop:
		var d wire.Drop
		if !wire.Unmarshal(body, &d) {
			return false
		}
		n.put(&wire.Item{Key: d.Key}, nil)
		delete(n.items, d.Key)
		n.waiter.Arm()
	case wire.KindNestAsk, wire.KindNestReap:
		var c wire.Child
		if !wire.Unmarshal(body, &c) {
			return false
		}
		switch {
		case kind == wire.KindNestAsk && c.Pid == 0: // just whether we are here yet
			_ = n.send(wire.KindNestTold, &c, nil)
		case kind == wire.KindNestAsk:
			_ = n.send(wire.KindNestTold, n.look(c.Pid), nil)
		default:
			kernel.Reap(c.Pid)
			delete(n.pids, c.Pid)
			n.waiter.Arm()
		}
	case wire.KindNestBinary:
		var p wire.Program
		if !wire.Unmarshal(body, &p) {
			return false
		}
		n.binary = p.Path
	case wire.KindNestServing:
		n.served = true
	case wire.KindNestQuit:
		n.quit = true
	default:
		return false
	}
	kernel.CloseAll(fds)
	return true
}

// put replaces an item.
func (n *nest) put(it *wire.Item, fds []int) bool {
	h := &held{roles: it.Roles, fds: fds, pids: it.Pids, blob: append([]byte(nil), it.Blob...)}
	old := n.items[it.Key]
	if old != nil {
		for i, r := range old.roles {
			if slices.Contains(it.Keep, r) && !slices.Contains(it.Roles, r) {
				h.roles, h.fds = append(h.roles, r), append(h.fds, old.fds[i])
			} else {
				_ = unix.Close(old.fds[i])
			}
		}
		for _, pid := range old.pids {
			if !slices.Contains(it.Pids, pid) {
				delete(n.pids, pid)
			}
		}
	}
	for _, pid := range it.Pids {
		if _, known := n.pids[pid]; !known { // its end may be noted already
			n.pids[pid] = 0
		}
	}
	pidfds := 0
	for i, r := range it.Roles {
		if (r == wire.RolePidfd || r == wire.RoleCommand) && pidfds < len(it.Pids) {
			_ = n.watch(fds[i], onChild, unix.EPOLLIN|unix.EPOLLET, it.Pids[pidfds])
			pidfds++
		}
	}
	n.items[it.Key] = h
	return true
}

// note remembers when a child of ours ended, for the keeper that asks.
func (n *nest) note(pid int) {
	if at, known := n.pids[pid]; known && at == 0 {
		if e, err := kernel.Peek(pid, false); err == nil && e.Pid != 0 {
			n.pids[pid] = time.Now().UnixNano()
		}
	}
}

// look tells how a child stands.
func (n *nest) look(pid int) *wire.Child {
	e, err := kernel.Peek(pid, false)
	if err != nil {
		return &wire.Child{Pid: pid, Gone: true}
	}
	at := n.pids[pid]
	if at == 0 {
		at = time.Now().UnixNano()
	}
	return &wire.Child{Pid: pid, Ended: e.Pid != 0, Wait: uint32(e.Wait), Nanos: at}
}

// reapStrangers takes ended children away that nobody knows. A known one stays
// until the keeper has its end on record; it hides those behind it till then.
func (n *nest) reapStrangers() {
	for {
		e, err := kernel.Peek(0, false)
		if err != nil {
			return
		}
		if e.Pid == 0 {
			n.waiter.Arm()
			return
		}
		if _, known := n.pids[e.Pid]; known || e.Pid == n.keeper {
			n.note(e.Pid)
			return
		}
		kernel.Reap(e.Pid)
	}
}
