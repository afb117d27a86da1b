package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	writers = 20  // running at any time
	ttys    = 2   // of them on a terminal
	rate    = 100 // records a second each, so 2,000 in all
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "writer" {
		os.Exit(writer(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "flood" {
		os.Exit(flood())
	}
	os.Exit(m.Run())
}

// window says which processes were down when a container ended.
type window string

const (
	agentDown  window = "agent down"
	keeperDown window = "keeper down"
	bothDown   window = "both down"
	allUp      window = "all up"
)

// subject is one container of the test, with its expected results.
type subject struct {
	*nodetest.Container
	id     int
	code   int
	tty    bool
	dir    string // control directory, on the host
	window window
}

// storm is one run of the chaos test.
type storm struct {
	t      *testing.T
	n      *nodetest.Node
	rnd    *rand.Rand
	pod    *nodetest.Pod
	image  string
	live   []*subject
	ended  []*subject
	count  map[window]int
	serial int
	// held is set while nothing reads the writers' output, because a keeper is dead and the
	// nest is stopped. late are the writers that got a stop meanwhile and could not obey,
	// because their pipes were full.
	held  bool
	late  []*subject
	stuck int // how many were late in total
	// retries counts launches that failed because the keeper died.
	retries int
	// seen are the names of the containers that were compared and removed, as a node's
	// owner would remove them: with more containers an agent's start takes longer.
	seen    []string
	repeats int
	// starting, filling and retiring add up how the run's time was spent.
	starting, filling, retiring time.Duration
}

// TestChaosLosesNothing checks the keeper's promise: agent and keeper are killed at
// random, independently of each other, and no exit and no byte of output is lost.
func TestChaosLosesNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		kills := 50
		if s := os.Getenv("LONGSHORE_CHAOS_KILLS"); s != "" {
			var err error
			if kills, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d kills, seed %d", kills, seed)
		s := newStorm(t, rand.New(rand.NewPCG(seed, 0)))
		s.run(kills)
		s.settle()
		s.verify()
		t.Logf("exits by window: %v; %d launches tried again, %d writers stuck where nobody read", s.count, s.retries, s.stuck)
		for _, w := range []window{agentDown, keeperDown, bothDown} {
			if s.count[w] < kills/10 {
				t.Errorf("only %d exits fell into the window %q: the test proves too little", s.count[w], w)
			}
		}
	})
}

// TestAllThreeKilledIsLostOnce: if agent, keeper and nest are killed together, an unseen exit
// is recorded as lost, exactly once, and never invented or missing.
func TestAllThreeKilledIsLostOnce(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newStorm(t, rand.New(rand.NewPCG(1, 1)))
		s.fill()
		before := s.live[:writers/2]
		s.n.Kill()
		s.n.KillPair()
		for _, c := range before {
			s.stop(c)
		}
		// The writers end now, or when their full pipe has a reader again, or, on a terminal,
		// by SIGHUP: no process can see how.
		s.n.Up()
		for _, c := range s.live {
			st := c.WaitExited(t)
			if st.GetExitCode() != 255 {
				t.Errorf("container %d ended with %d (%s), want 255: nobody could know", c.id, st.GetExitCode(), st.GetReason())
			}
		}
		s.ended, s.live = s.live, nil
		s.compare()
		s.oneExitEach()
		s.n.Check()
		// The node can start containers again.
		s.fill()
		s.finishAll()
		s.verify()
	})
}

func newStorm(t *testing.T, rnd *rand.Rand) *storm {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{})
	s := &storm{t: t, n: n, rnd: rnd, image: n.Busybox(t), count: map[window]int{}}
	s.pod = n.RunPod(t, n.PodConfig("chaos"))
	return s
}

// fill starts containers until enough of them run.
func (s *storm) fill() {
	for len(s.live) < writers {
		s.live = append(s.live, s.start())
	}
}

func (s *storm) start() *subject {
	s.t.Helper()
	s.serial++
	c := &subject{id: s.serial, code: s.rnd.IntN(100), dir: filepath.Join(s.n.Dir, "control", strconv.Itoa(s.serial))}
	c.tty = s.terminals() < ttys
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := nodetest.ContainerConfig(fmt.Sprintf("writer-%d", c.id), s.image, "/writer", "writer", "/control", strconv.Itoa(c.id), strconv.Itoa(rate))
	cfg.Tty = c.tty
	cfg.Mounts = []*runtimeapi.Mount{
		{HostPath: self, ContainerPath: "/writer", Readonly: true},
		{HostPath: c.dir, ContainerPath: "/control"},
	}
	c.Container = s.launch(cfg)
	return c
}

// launch makes and starts a container. It tries again after Unavailable, as kubelet does: a
// keeper that dies during a launch cannot tell its outcome.
func (s *storm) launch(cfg *runtimeapi.ContainerConfig) *nodetest.Container {
	s.t.Helper()
	var c *nodetest.Container
	nodetest.Eventually(s.t, cfg.GetMetadata().GetName()+" runs", func() bool {
		made, err := s.n.CRI.CreateContainer(s.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: s.pod.ID, Config: cfg, SandboxConfig: s.pod.Config})
		if err == nil {
			c = s.pod.Container(made.GetContainerId(), cfg)
			_, err = s.n.CRI.StartContainer(s.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
		}
		if err != nil && status.Code(err) != codes.Unavailable {
			s.t.Fatalf("launch %s: %v", cfg.GetMetadata().GetName(), err)
		}
		if err != nil {
			s.retries++
			cfg.Metadata.Attempt++
		}
		return err == nil
	})
	return c
}

func (s *storm) terminals() int {
	n := 0
	for _, l := range s.live {
		if l.tty {
			n++
		}
	}
	return n
}

// stop tells a writer to end with its code.
func (s *storm) stop(c *subject) {
	s.t.Helper()
	tmp := filepath.Join(c.dir, ".stop")
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(c.code)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(c.dir, "stop")); err != nil {
		s.t.Fatal(err)
	}
}

// gone waits until a stopped writer has written its last byte or, while nothing reads,
// is blocked writing it. It returns which of the two.
func (s *storm) gone(c *subject) (done bool) {
	s.t.Helper()
	nodetest.Eventually(s.t, fmt.Sprintf("writer %d stops", c.id), func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "count"))
		if done = err == nil; !done && s.held && stuck(c.id) {
			return true
		}
		if msg, err := os.ReadFile(filepath.Join(c.dir, "failed")); err == nil {
			s.t.Fatalf("writer %d could not write: %s", c.id, msg)
		}
		return done || !s.held && s.n.Pid() != 0 && s.diedEarly(c)
	})
	return done
}

// stuck reports whether a writer is blocked in a write to its output.
func stuck(id int) bool {
	for _, pid := range nodetest.Processes("writer", "writer") {
		dir := fmt.Sprintf("/proc/%d/", pid)
		args, err := os.ReadFile(dir + "cmdline")
		if f := strings.Split(string(args), "\x00"); err != nil || len(f) < 4 || f[3] != strconv.Itoa(id) {
			continue
		}
		threads, err := filepath.Glob(dir + "task/*/syscall")
		if err != nil {
			return false
		}
		for _, thread := range threads {
			call, err := os.ReadFile(thread)
			if f := strings.Fields(string(call)); err == nil && len(f) > 1 && f[0] == strconv.Itoa(syscall.SYS_WRITE) && (f[1] == "0x1" || f[1] == "0x2") {
				return true
			}
		}
	}
	return false
}

// diedEarly fails the test if a writer that was not told to stop has exited.
func (s *storm) diedEarly(c *subject) bool {
	s.t.Helper()
	st := c.Status(s.t)
	if _, err := os.Stat(filepath.Join(c.dir, "count")); err == nil || st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		return false
	}
	s.t.Fatalf("writer %d (terminal %v) ended by itself: %d %s %s, log %.300q", c.id, c.tty, st.GetExitCode(), st.GetReason(), st.GetMessage(), c.ReadLog(s.t))
	return false
}

// retire picks a random live writer and ends it in the given window.
func (s *storm) retire(w window) {
	if len(s.live) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.live))
	c := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	s.stop(c)
	defer func(begun time.Time) { s.retiring += time.Since(begun) }(time.Now())
	if !s.gone(c) {
		s.late = append(s.late, c)
		s.stuck++
		return
	}
	s.end(c, w)
}

func (s *storm) end(c *subject, w window) {
	c.window = w
	s.count[w]++
	s.ended = append(s.ended, c)
}

// release starts the nest again and waits for the writers that were blocked.
func (s *storm) release() {
	s.held = false
	signalAll(s.t, "nest", syscall.SIGCONT)
	for _, c := range s.late {
		s.gone(c)
		s.end(c, allUp)
	}
	s.late = nil
}

// run kills agent and keeper until enough kills have happened.
func (s *storm) run(kills int) {
	enough := func() bool {
		for _, w := range []window{agentDown, keeperDown, bothDown} {
			if s.count[w] < kills/10 {
				return false
			}
		}
		return true
	}
	begun, told := time.Now(), 0
	// Kill a few more times if a window was hit rarely by chance.
	for done := 0; done < kills || !enough() && done < 2*kills; {
		if done >= told+10 {
			told = done
			s.tell("%d kills, %d containers in %.0f s, of them %.0f s for agents to start, %.0f s for containers, %.0f s for writers to end",
				done, s.serial, time.Since(begun).Seconds(), s.starting.Seconds(), s.filling.Seconds(), s.retiring.Seconds())
		}
		if len(s.ended) >= 3*writers {
			s.compare()
		}
		took(&s.filling, s.fill)
		s.pause(20 + s.rnd.IntN(200))
		s.retire(allUp)
		agent, keeper := s.rnd.IntN(2) == 0, s.rnd.IntN(2) == 0
		w := allUp
		switch {
		case agent && keeper:
			w = bothDown
		case agent:
			w = agentDown
		case keeper:
			w = keeperDown
		}
		// A stopped nest cannot start the next keeper, so the window stays open long
		// enough for an exit to fall into it. Half the time the nest is not stopped.
		hold := keeper && s.rnd.IntN(2) == 0
		if hold {
			signalAll(s.t, "nest", syscall.SIGSTOP)
		}
		if agent {
			s.n.Kill()
			done++
		}
		if keeper {
			killAll(s.t, "keeper")
			s.held = hold
			done++
		}
		if w != allUp && (hold || agent) {
			for range 1 + s.rnd.IntN(2) {
				s.retire(w)
			}
		}
		if hold {
			s.release()
		}
		if agent {
			s.pause(s.rnd.IntN(100))
			took(&s.starting, s.n.Up)
		}
		if keeper {
			s.keeperBack()
		}
	}
}

// tell logs the progress of a run, also to the file that LONGSHORE_CHAOS_PROGRESS names
// (a guest's /dev/console), because a test's own log is shown only at its end.
func (s *storm) tell(format string, args ...any) {
	s.t.Helper()
	s.t.Logf(format, args...)
	if f, err := os.OpenFile(os.Getenv("LONGSHORE_CHAOS_PROGRESS"), os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_, _ = fmt.Fprintf(f, format+"\n", args...)
		_ = f.Close()
	}
}

// took adds the time that f takes to a sum.
func took(sum *time.Duration, f func()) {
	begun := time.Now()
	f()
	*sum += time.Since(begun)
}

// keeperBack waits until the node has a keeper again and the agent talks to it.
func (s *storm) keeperBack() {
	s.t.Helper()
	nodetest.Eventually(s.t, "a keeper is back", func() bool {
		return len(nodetest.Pair("keeper")) == 1
	})
}

// pause lets the writers write for a while; nothing depends on its length.
func (s *storm) pause(ms int) {
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	<-timer.C
}

func (s *storm) settle() {
	s.fill()
	s.finishAll()
}

func (s *storm) finishAll() {
	for len(s.live) > 0 {
		s.retire(allUp)
	}
}

// verify compares every exit and every byte.
func (s *storm) verify() {
	s.t.Helper()
	s.compare()
	s.oneExitEach()
	s.n.Check()
	s.t.Logf("%d containers compared, %d chunks repeated on terminals", len(s.seen), s.repeats)
}

// compare compares the containers that have ended so far, and removes them.
func (s *storm) compare() {
	s.t.Helper()
	for _, c := range s.ended {
		st := c.WaitExited(s.t)
		if c.window != "" {
			if int(st.GetExitCode()) != c.code {
				s.t.Errorf("container %d (%s) ended with %d (%s), want %d", c.id, c.window, st.GetExitCode(), st.GetReason(), c.code)
			}
			s.repeats += s.verifyLog(c)
		}
		if s.t.Failed() {
			continue // keep the rest, which may show the reason
		}
		nodetest.Eventually(s.t, fmt.Sprintf("container %d is removed", c.id), func() bool {
			_, err := s.n.CRI.RemoveContainer(s.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID})
			if err != nil && status.Code(err) != codes.Unavailable {
				s.t.Fatalf("remove container %d: %v", c.id, err)
			}
			return err == nil
		})
		if err := os.RemoveAll(c.dir); err != nil {
			s.t.Error(err)
		}
	}
	for _, c := range s.ended {
		s.seen = append(s.seen, c.ID)
	}
	s.ended = nil
}

func (s *storm) verifyLog(c *subject) (repeats int) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "count"))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	stdout, stderr, err := reassemble([]byte(c.ReadLog(s.t)))
	if err != nil {
		s.t.Errorf("container %d (%s): %v", c.id, c.window, err)
		return 0
	}
	if c.tty {
		repeats, d := differTTY(stdout, expectedTTY(c.id, n))
		if d != "" {
			s.t.Errorf("container %d (%s), terminal: %s", c.id, c.window, d)
		}
		return repeats
	}
	wantOut, wantErr := expected(c.id, n)
	if d := differ(stdout, wantOut); d != "" {
		s.t.Errorf("container %d (%s), stdout: %s", c.id, c.window, d)
	}
	if d := differ(stderr, wantErr); d != "" {
		s.t.Errorf("container %d (%s), stderr: %s", c.id, c.window, d)
	}
	return 0
}

// oneExitEach checks that the event log has exactly one exit of each container.
func (s *storm) oneExitEach() {
	s.t.Helper()
	exits := map[string]int{}
	var last uint64
	for _, e := range s.n.Events() {
		if e.Seq != last+1 {
			s.t.Errorf("event %d follows %d", e.Seq, last)
		}
		last = e.Seq
		if e.Kind == "container.exited" {
			exits[e.Container]++
		}
	}
	for _, id := range s.seen {
		if exits[id] != 1 {
			s.t.Errorf("container %s has %d exit events", id, exits[id])
		}
	}
}

func killAll(t *testing.T, role string) {
	t.Helper()
	signalAll(t, role, syscall.SIGKILL)
}

func signalAll(t *testing.T, role string, sig syscall.Signal) {
	t.Helper()
	pids := nodetest.Pair(role)
	if len(pids) == 0 {
		t.Fatalf("no %s is running", role)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
}
