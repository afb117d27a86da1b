package server

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
)

// limitFiles sets how many descriptors this process may have, for the duration of fn.
func limitFiles(t *testing.T, most uint64, fn func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
}

// newTestServer returns a keeper with the test as its loop, and the nest's end of its socket.
func newTestServer(t *testing.T) (s *Server, nestEnd int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s = &Server{dir: t.TempDir(), listenFD: -1, heldFiles: map[string][]int{}, byKey: map[string]*proc{}, procs: map[wire.Ref]*proc{}, conns: map[int]*conn{}}
	s.nest.fd = ends[0]
	if s.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if s.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	if s.waiter, err = kernel.NewWaiter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range []int{ends[0], ends[1], s.ep, s.wakeFD} {
			_ = unix.Close(fd)
		}
	})
	return s, ends[1]
}

// events handles ready descriptors, and returns their number.
func events(t *testing.T, s *Server) int {
	t.Helper()
	var evs [8]unix.EpollEvent
	n, err := unix.EpollWait(s.ep, evs[:], 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range evs[:n] {
		s.handlers[ev.Fd].ready(s, ev.Events)
	}
	return n
}

// frames returns the kinds of all frames that the nest has received, and how many descriptors came.
func frames(t *testing.T, fd int) (kinds []wire.Kind, descriptors int) {
	t.Helper()
	var in kernel.Receiver
	for {
		b, fds, err := in.Recv(fd, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return kinds, descriptors
		}
		if err != nil {
			t.Fatal(err)
		}
		kernel.CloseAll(fds)
		h, _, _ := wire.ParseHeader(b)
		kinds, descriptors = append(kinds, h.Kind), descriptors+len(fds)
	}
}

// TestAnAgentThatCannotBeAcceptedWaits: while the process can open no more descriptors, the keeper does
// not try to accept an agent again and again. Afterwards it accepts the agent.
func TestAnAgentThatCannotBeAcceptedWaits(t *testing.T) {
	s, _ := newTestServer(t)
	fd, err := kernel.Listen(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	s.listenFD = fd
	s.add(fd, listener{}, unix.EPOLLIN)
	agent, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(agent), unix.Close(fd) }()
	if err := unix.Connect(agent, &unix.SockaddrUnix{Name: s.dir + "/keeper.sock"}); err != nil {
		t.Fatal(err)
	}
	limitFiles(t, 3, func() {
		if first, second := events(t, s), events(t, s); first != 1 || second != 0 {
			t.Errorf("%d and then %d descriptors had events, want 1 and then none", first, second)
		}
	})
	now := time.Now()
	if ms := s.delays.wait(now); ms <= 0 || ms > 101 {
		t.Errorf("it waits for %d ms", ms)
	}
	s.delays.call(now.Add(time.Second))
	if n := events(t, s); n != 1 {
		t.Errorf("after the shortage %d descriptors had events", n)
	}
	// The test may run as another user than root, which the keeper refuses.
	if want := unix.Getuid() == 0; (len(s.conns) == 1) != want {
		t.Errorf("%d connections", len(s.conns))
	}
}

// TestTheNestGetsLaterWhatAShortagePrevents: an item that cannot be sent for want of descriptors is sent
// later, as it is then and once, before the question that came after it. The nest is not given up.
func TestTheNestGetsLaterWhatAShortagePrevents(t *testing.T) {
	s, nestEnd := newTestServer(t)
	one, err := duplicates([]int{s.wakeFD})
	if err != nil {
		t.Fatal(err)
	}
	two, err := duplicates([]int{s.wakeFD, s.wakeFD})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { kernel.CloseAll(append(one, two...)) }()
	long := make([]byte, wire.MaxInline+1) // goes into a memory file, which needs a descriptor
	put := func(name string, fds []int) {
		s.heldFiles[name] = fds
		it := heldItem(name, len(fds))
		it.Blob = long
		s.nest.put(s, &it, fds)
	}
	asked := false
	limitFiles(t, 3, func() {
		put("a", one)
		put("b", one)
		put("b", two)
		put("gone", one)
		delete(s.heldFiles, "gone")
		s.nest.drop(s, wire.HeldPrefix+"gone")
		s.nest.sync(s, func() { asked = true })
	})
	kinds, n := frames(t, nestEnd)
	if s.nest.fd < 0 || n != 0 || !slices.Equal(kinds, []wire.Kind{wire.KindNestDrop}) {
		t.Fatalf("during the shortage the nest got %v with %d descriptors; it is %d", kinds, n, s.nest.fd)
	}
	if !s.nest.behind() || !errors.Is(s.become(&upgrade{path: "/"}), errBehind) {
		t.Error("an upgrade would lose what the nest lacks")
	}
	s.delays.call(time.Now().Add(time.Second))
	kinds, n = frames(t, nestEnd)
	if want := []wire.Kind{wire.KindNestPut, wire.KindNestPut, wire.KindNestAsk}; !slices.Equal(kinds, want) || n != 3 || asked || s.nest.behind() {
		t.Errorf("afterwards the nest got %v with %d descriptors, want %v with 3; behind: %t", kinds, n, want, s.nest.behind())
	}
}

// TestTheNestGetsAgainWhatItCouldNotReceive: an item that it names, or all, after a pause.
func TestTheNestGetsAgainWhatItCouldNotReceive(t *testing.T) {
	s, nestEnd := newTestServer(t)
	s.heldFiles["a"], s.heldFiles["b"] = []int{s.wakeFD}, []int{s.wakeFD}
	for key, want := range map[string]int{wire.HeldPrefix + "a": 1, "": 2} {
		if err := unix.Send(nestEnd, wire.Frame(wire.KindNestLacks, 0, &wire.Drop{Key: key}), 0); err != nil {
			t.Fatal(err)
		}
		s.nest.ready(s, 0)
		if kinds, _ := frames(t, nestEnd); len(kinds) > 0 || !s.nest.behind() {
			t.Errorf("at once the nest got %v", kinds)
		}
		s.delays.call(time.Now().Add(2 * lacksPause))
		if kinds, n := frames(t, nestEnd); len(kinds) != want || n != want || s.nest.behind() {
			t.Errorf("for the key %q the nest got %v with %d descriptors, want %d items", key, kinds, n, want)
		}
	}
}

// TestAnAnswerWaitsForDescriptors: the connection of an agent stays when an answer cannot be sent for
// want of descriptors, and the answer comes later.
func TestAnAnswerWaitsForDescriptors(t *testing.T) {
	s, agentEnd := newTestServer(t)
	c := s.addConn(s.nest.fd)
	limitFiles(t, 3, func() {
		c.ok(s, 1, &wire.Result{Stdout: make([]byte, wire.MaxInline+1)})
		c.ok(s, 2, nil)
	})
	if kinds, _ := frames(t, agentEnd); len(kinds) > 0 || c.fd < 0 {
		t.Fatalf("during the shortage the agent got %v on connection %d", kinds, c.fd)
	}
	s.delays.call(time.Now().Add(time.Second))
	if kinds, n := frames(t, agentEnd); !slices.Equal(kinds, []wire.Kind{wire.KindOK, wire.KindOK}) || n != 1 {
		t.Errorf("afterwards the agent got %v with %d descriptors", kinds, n)
	}
}

// TestALauncherIsStartedAgainAfterAFailure: the keeper forks by itself only until then.
func TestALauncherIsStartedAgainAfterAFailure(t *testing.T) {
	s, _ := newTestServer(t)
	limitFiles(t, 3, func() { s.newLauncher(nil) })
	if s.launcher.Load() != nil {
		t.Fatal("a launcher was started without a descriptor")
	}
	if ms := s.delays.wait(time.Now()); ms <= 0 || ms > 1000 {
		t.Errorf("the next attempt is in %d ms", ms)
	}
	s.delays.call(time.Now().Add(2 * launcherPause))
	l := s.launcher.Load()
	if l == nil {
		t.Fatal("no launcher was started after the shortage")
	}
	l.Close()
	roottest.Eventually(t, "the launcher has ended", func() bool { return kernel.Reap(l.Pid()) })
}
