// Package nest is the keeper's parent. It holds descriptors and records that must outlive the
// keeper, and does not interpret them; it inherits the keeper's children; and it starts the next
// keeper.
//
// It must not know containers, formats or agents, does very little, and is never
// upgraded. Start reading at Main.
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
	"github.com/longshore/longshore/internal/shortage"
)

// ListenFD is the descriptor of the socket for agents when a nest starts.
const ListenFD = 3

// held is one item.
type held struct {
	roles []wire.Role
	fds   []int
	pids  []int
	blob  []byte
}

// nest is the nest's whole state.
type nest struct {
	dir      string
	binary   string // the keeper's program; "" for this one
	ep       int
	items    map[string]*held
	pids     map[int]int64 // when known children ended, by pid; 0 while they run
	waiter   *kernel.Waiter
	sock     int // to the keeper; -1 if there is none
	keeper   int // pid
	keeperFD int // pidfd
	started  time.Time
	failures int
	served   bool // the last keeper has reported that it serves
	restarts uint64
	quit     bool
	in       kernel.Receiver
	outgo    kernel.Sender
	answers  []answer // that a shortage of memory has kept back
	sinceGC  int      // frames since the last garbage collection
}

// answer is a frame for the keeper that serves now.
type answer struct {
	kind wire.Kind
	m    wire.Message
}

// gcInterval is how many frames may pass before the next garbage collection. Go's own pacing would
// let a megabyte of garbage grow first, with all settings.
const gcInterval = 128

// The kinds of epoll events, in their Pad. Fd says which descriptor or child.
const (
	onSocket = iota
	onKeeper
	onWaiter
	onChild // Fd is the pid
)

// Main runs the nest of the pair in dir until a request to quit, and returns the exit status.
// Handed is the memory file with the items that it starts with, -1 for none.
func Main(dir string, handed int) int {
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
	if handed >= 0 && !n.takeHanded(handed) {
		logLine("cannot read the items that it was started with")
		return 1
	}
	// The nest keeps the socket, so that agents can connect while there is no keeper.
	if n.items[wire.SocketKey] == nil {
		unix.CloseOnExec(ListenFD)
		n.items[wire.SocketKey] = &held{roles: []wire.Role{wire.RoleSocket}, fds: []int{ListenFD}}
	}
	kernel.OpenPoller()
	for !n.quit {
		if n.keeper == 0 {
			if n.failures > maxEarlyDeaths {
				n.wait(n.pause())
			}
			if !n.start() {
				continue
			}
		}
		if len(n.answers) > 0 {
			n.wait(int(shortage.Pause.Milliseconds()))
			n.flush()
			continue
		}
		n.wait(-1)
	}
	return 0
}

// takeHanded takes over the items that this process was started with, and their descriptors.
// Processes that were children of the program before, by the same pid, are children still.
func (n *nest) takeHanded(file int) bool {
	b, err := kernel.ReadFD(file, wire.MaxHanded)
	_ = unix.Close(file)
	var m wire.HandedItems
	if err != nil || !wire.ParseRecord(b, &m) {
		return false
	}
	for i := range m.List {
		it := &m.List[i]
		var fds []int
		for _, fd := range it.FDs {
			unix.CloseOnExec(int(fd))
			fds = append(fds, int(fd))
		}
		if len(fds) != len(it.Item.Roles) || !n.put(&it.Item, fds) {
			return false
		}
	}
	n.waiter.Arm()
	return true
}

// boundLog truncates the log if it has grown too long. It is open for appending, so
// the next line goes to its new end.
func boundLog() {
	var st unix.Stat_t
	const most = 1 << 20
	if unix.Fstat(2, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > most {
		_ = unix.Ftruncate(2, 0)
	}
}

func logLine(text string) { _ = kernel.WriteAll(2, []byte("nest: "+text+"\n")) }

// pause returns how many milliseconds to wait before the next keeper is started. It is
// short if the last keeper served, because agents wait for the next one; otherwise it
// doubles while keepers die before they serve.
func (n *nest) pause() int {
	if n.served {
		return 10
	}
	return min(10<<min(n.failures-maxEarlyDeaths, 9), 5000)
}

func (n *nest) watch(fd, what int, events uint32, data int) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(data), Pad: int32(what)}
	return unix.EpollCtl(n.ep, unix.EPOLL_CTL_ADD, fd, &ev)
}

// start starts a keeper and hands it everything.
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
		logLine("watch the keeper: epoll failed")
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
		pid, pidfd, err = kernel.Start(file, []string{kernel.KeeperName, "keeper", n.dir}, kernel.SmallEnv(2), []int{0, 1, 2, sock})
		done()
		if err == nil {
			return pid, pidfd, nil
		}
		logLine("exec " + path + ": " + err.Error())
	}
	return 0, -1, err
}

func (n *nest) failed(what string, err error) bool {
	logLine(what + ": " + err.Error())
	n.failures++
	return false
}

// handOver sends all items to a new keeper. The keeper reads nothing else until it has
// them, so blocking here cannot deadlock. A shortage delays it.
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
	return n.outgo.SendAgain(n.sock, wire.Header{Kind: k}, m, fds)
}

// answer sends a frame without descriptors to the keeper, which has items to send meanwhile: a shortage
// does not block, and the frame is sent later.
func (n *nest) answer(k wire.Kind, m wire.Message) {
	n.answers = append(n.answers, answer{k, m})
	if len(n.answers) == 1 {
		n.flush()
	}
}

// flush sends the answers that were kept back.
func (n *nest) flush() {
	for len(n.answers) > 0 && n.sock >= 0 {
		a := n.answers[0]
		if shortage.Is(n.outgo.Send(kernel.Send, n.sock, wire.Header{Kind: a.kind}, a.m, nil)) {
			return
		}
		n.answers = n.answers[1:]
	}
	n.answers = nil
}

// lacks asks the keeper to send an item again that arrived without its descriptors, because this
// process can open no more. The one before stays until then.
func (n *nest) lacks(frame []byte) {
	h, body, ok := wire.ParseHeader(frame)
	var it wire.Item
	if !ok || h.Kind != wire.KindNestPut || h.Flags != 0 || !wire.Unmarshal(body, &it) {
		it.Key = "" // its record was among the descriptors
	}
	logLine("no descriptors left to receive the keeper's: it must send them again")
	n.answer(wire.KindNestLacks, &wire.Drop{Key: it.Key})
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
			n.noteEnd(int(ev.Fd))
		}
	}
}

// keeperDied reads the keeper's last messages, and reaps it.
func (n *nest) keeperDied() {
	e, err := kernel.Peek(n.keeper, false)
	if err == nil && e.Pid == 0 {
		return // it has not ended yet
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
	logLine("keeper died, wait status " + kernel.Itoa(int(e.Wait)))
	n.waiter.Arm()
}

// maxEarlyDeaths is how many keepers in a row may die within a second of their start before
// the start of the next one is delayed.
const maxEarlyDeaths = 16

func (n *nest) forgetSocket() {
	if n.sock >= 0 {
		_ = unix.Close(n.sock)
		n.sock = -1
	}
	n.answers = nil
}

// receive handles one frame from the keeper. It reports false if there is none.
func (n *nest) receive() bool {
	frame, fds, err := n.in.Recv(n.sock, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.EMSGSIZE) {
		n.lacks(frame)
		return true
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
	if n.sinceGC++; n.sinceGC >= gcInterval {
		n.sinceGC = 0
		runtime.GC()
	}
	body, fds, err := kernel.Body(h, inline, fds)
	if shortage.Is(err) {
		kernel.CloseAll(fds)
		n.lacks(nil)
		return true
	}
	if err != nil || !n.handle(h.Kind, body, fds) {
		logLine("cannot decode a frame of the keeper")
		kernel.CloseAll(fds)
	}
	return true
}

// handle carries out one frame. It reports true if it has taken the descriptors.
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
		case kind == wire.KindNestAsk && c.Pid == 0: // the keeper only asks whether all frames before were handled
			n.answer(wire.KindNestEnd, &c)
		case kind == wire.KindNestAsk:
			n.answer(wire.KindNestEnd, n.stateOf(c.Pid))
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
		if _, known := n.pids[pid]; !known { // its end may have been noted already
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

// noteEnd records when a child ended, for the keeper that asks.
func (n *nest) noteEnd(pid int) {
	if at, known := n.pids[pid]; known && at == 0 {
		if e, err := kernel.Peek(pid, false); err == nil && e.Pid != 0 {
			n.pids[pid] = time.Now().UnixNano()
		}
	}
}

// stateOf returns how a child stands.
func (n *nest) stateOf(pid int) *wire.Child {
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

// reapStrangers reaps ended children that belong to no item. The others stay until the
// keeper has recorded their exit; until then they hide the ones behind them.
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
			n.noteEnd(e.Pid)
			return
		}
		kernel.Reap(e.Pid)
	}
}
