// Package keepertest is the contract of core.Supervisor as tests, which the real
// keeper and every fake must pass.
//
// It knows no implementation; a Harness brings one, with a way to start processes that run a
// Program. Start reading at Run.
package keepertest

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// Program has the actions of a test's process, in this order: write Stdout and Stderr; with Echo,
// copy its input to its output until the input ends; with Wait, wait for a deadly signal; exit with
// Code.
type Program struct {
	Stdout, Stderr string
	Echo           bool
	Wait           bool
	Code           int
}

// Harness is one implementation.
type Harness struct {
	Supervisor core.Supervisor
	// Start launches a process, with a stream when attach is not nil.
	Start func(ctx context.Context, ref core.Ref, p Program, stdio core.IO, attach *core.StreamOptions) (core.Launched, error)
}

// Run runs the contract. fresh is called once per test.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(*testing.T, *suite)
	}{
		{"ExitCodeIsTold", exitCodeIsReported},
		{"SignalEndsAndIsTold", signalEndsAndIsReported},
		{"ExitIsOfferedUntilAcknowledged", exitIsOfferedUntilAcknowledged},
		{"SecondLaunchOfARefIsRefused", secondLaunchOfARefIsRefused},
		{"UnknownRefs", unknownRefs},
		{"EndedProcess", endedProcess},
		{"ProcessesAndForget", processesAndForget},
		{"AttachedFromTheStart", attachedFromTheStart},
		{"HeldOutputWaitsForItsReader", heldOutputWaitsForItsReader},
		{"StdinOnceEndsWithItsStream", stdinOnceEndsWithItsStream},
		{"StdinOpenOutlivesItsStream", stdinOpenOutlivesItsStream},
		{"ResizeNeedsATerminal", resizeNeedsATerminal},
		{"ExecsAndMainAreApart", execsAndMainAreSeparate},
		{"NothingIsLeftOfProbes", nothingIsLeftOfProbes},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
			defer cancel()
			c.test(t, &suite{Harness: fresh(t), ctx: ctx})
		})
	}
}

type suite struct {
	Harness
	ctx context.Context
}

func ref(name string) core.Ref { return core.Ref{Container: core.ID(name)} }

func (s *suite) start(t *testing.T, r core.Ref, p Program, stdio core.IO) core.Launched {
	t.Helper()
	return s.attach(t, r, p, stdio, nil)
}

func (s *suite) attach(t *testing.T, r core.Ref, p Program, stdio core.IO, attach *core.StreamOptions) core.Launched {
	t.Helper()
	got, err := s.Start(s.ctx, r, p, stdio, attach)
	if err != nil {
		t.Fatalf("start %v: %v", r, err)
	}
	return got
}

// exit waits for an exit.
func (s *suite) exit(t *testing.T, r core.Ref) core.ProcessExit {
	t.Helper()
	for x, err := range s.Supervisor.Exits(s.ctx) {
		if err != nil {
			t.Fatalf("exits: %v", err)
		}
		if x.Ref == r {
			return x
		}
	}
	t.Fatalf("no exit of %v came", r)
	return core.ProcessExit{}
}

func exitCodeIsReported(t *testing.T, s *suite) {
	before := time.Now().Add(-time.Second)
	got := s.start(t, ref("a"), Program{Code: 42}, core.IO{})
	if got.Pid <= 0 || got.Streams != nil {
		t.Errorf("launched %+v", got)
	}
	x := s.exit(t, ref("a"))
	if x.Exit.Code != 42 || x.Exit.Signal != 0 || x.Exit.Lost || x.Pid != got.Pid {
		t.Errorf("exit %+v, pid was %d", x, got.Pid)
	}
	if x.Exit.At.Before(before) || x.Exit.At.After(time.Now().Add(time.Second)) {
		t.Errorf("it ended at %v", x.Exit.At)
	}
}

func signalEndsAndIsReported(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Wait: true}, core.IO{})
	const kill = 9
	if err := s.Supervisor.Signal(s.ctx, ref("a"), kill); err != nil {
		t.Fatal(err)
	}
	if x := s.exit(t, ref("a")); x.Exit.Signal != kill {
		t.Errorf("exit %+v", x.Exit)
	}
}

func exitIsOfferedUntilAcknowledged(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Code: 1}, core.IO{})
	for range 3 {
		if x := s.exit(t, ref("a")); x.Exit.Code != 1 {
			t.Errorf("exit %+v", x.Exit)
		}
	}
	if err := s.Supervisor.Ack(s.ctx, ref("a")); err != nil {
		t.Fatal(err)
	}
	s.start(t, ref("b"), Program{Code: 2}, core.IO{})
	for x, err := range s.Supervisor.Exits(s.ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if x.Ref == ref("a") {
			t.Error("an acknowledged exit is offered again")
		}
		if x.Ref == ref("b") {
			break
		}
	}
}

func secondLaunchOfARefIsRefused(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Wait: true}, core.IO{})
	if _, err := s.Start(s.ctx, ref("a"), Program{}, core.IO{}, nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second launch: %v", err)
	}
	if err := s.Supervisor.Signal(s.ctx, ref("a"), 9); err != nil {
		t.Error(err)
	}
}

func unknownRefs(t *testing.T, s *suite) {
	r := ref("nobody")
	_, err := s.Supervisor.Streams(s.ctx, r, core.StreamOptions{Stdout: true})
	for what, err := range map[string]error{
		"Signal": s.Supervisor.Signal(s.ctx, r, 15), "Resize": s.Supervisor.Resize(s.ctx, r, core.Size{Cols: 1, Rows: 1}),
		"CloseStdin": s.Supervisor.CloseStdin(s.ctx, r), "ReopenSinks": s.Supervisor.ReopenSinks(s.ctx, r), "Streams": err,
	} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Supervisor.Forget(s.ctx, r); err != nil {
		t.Errorf("Forget: %v", err)
	}
}

func endedProcess(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{}, core.IO{})
	s.exit(t, ref("a"))
	if err := s.Supervisor.Signal(s.ctx, ref("a"), 15); !errdefs.IsNotFound(err) {
		t.Errorf("Signal: %v", err)
	}
	st, err := s.Supervisor.Streams(s.ctx, ref("a"), core.StreamOptions{Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(st.Stdout); err != nil || len(b) > 0 {
		t.Errorf("read %q, %v", b, err)
	}
	_ = st.Close()
}

func processesAndForget(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Wait: true}, core.IO{})
	s.start(t, ref("b"), Program{}, core.IO{})
	s.exit(t, ref("b"))
	find := func(r core.Ref) *core.Supervised {
		list, err := s.Supervisor.Processes(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(p core.Supervised) bool { return p.Ref == r })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	if p := find(ref("a")); p == nil || !p.Running {
		t.Errorf("a: %+v", p)
	}
	if p := find(ref("b")); p == nil || p.Running {
		t.Errorf("b: %+v", p)
	}
	if err := s.Supervisor.Forget(s.ctx, ref("a")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Forget of what runs: %v", err)
	}
	if err := s.Supervisor.Forget(s.ctx, ref("b")); err != nil {
		t.Errorf("Forget: %v", err)
	}
	if p := find(ref("b")); p != nil {
		t.Errorf("forgotten and listed: %+v", p)
	}
	if _, err := s.Start(s.ctx, ref("b"), Program{}, core.IO{}, nil); err != nil {
		t.Errorf("a forgotten name is not free: %v", err)
	}
	if err := s.Supervisor.Signal(s.ctx, ref("a"), 9); err != nil {
		t.Error(err)
	}
}

func attachedFromTheStart(t *testing.T, s *suite) {
	got := s.attach(t, ref("a"), Program{Stdout: "out\n", Stderr: "err\n"}, core.IO{}, &core.StreamOptions{Stdout: true, Stderr: true})
	if got.Streams == nil {
		t.Fatal("no streams")
	}
	defer func() { _ = got.Streams.Close() }()
	if b, err := io.ReadAll(got.Streams.Stdout); err != nil || string(b) != "out\n" {
		t.Errorf("stdout %q, %v", b, err)
	}
	if b, err := io.ReadAll(got.Streams.Stderr); err != nil || string(b) != "err\n" {
		t.Errorf("stderr %q, %v", b, err)
	}
	s.exit(t, ref("a"))
}

func heldOutputWaitsForItsReader(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Stdout: "kept"}, core.IO{Hold: true})
	s.exit(t, ref("a"))
	st, err := s.Supervisor.Streams(s.ctx, ref("a"), core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Supervisor.Streams(s.ctx, ref("a"), core.StreamOptions{Stdout: true, Exclusive: true}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second exclusive stream: %v", err)
	}
	if b, err := io.ReadAll(st.Stdout); err != nil || string(b) != "kept" {
		t.Errorf("stdout %q, %v", b, err)
	}
	if b, err := io.ReadAll(st.Stderr); err != nil || len(b) > 0 {
		t.Errorf("stderr %q, %v", b, err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	again, err := s.Supervisor.Streams(s.ctx, ref("a"), core.StreamOptions{Stdout: true, Exclusive: true})
	if err != nil {
		t.Fatalf("after the first was closed: %v", err)
	}
	_ = again.Close()
	s.start(t, ref("b"), Program{}, core.IO{})
	if _, err := s.Supervisor.Streams(s.ctx, ref("b"), core.StreamOptions{Stdout: true, Exclusive: true}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exclusive without hold: %v", err)
	}
}

func stdinOnceEndsWithItsStream(t *testing.T, s *suite) {
	got := s.attach(t, ref("a"), Program{Echo: true, Code: 3}, core.IO{Stdin: core.StdinOnce}, &core.StreamOptions{Stdin: true, Stdout: true})
	if _, err := io.WriteString(got.Streams.Stdin, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := got.Streams.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(got.Streams.Stdout); err != nil || string(b) != "hello" {
		t.Errorf("echo %q, %v", b, err)
	}
	if x := s.exit(t, ref("a")); x.Exit.Code != 3 {
		t.Errorf("exit %+v", x.Exit)
	}
	_ = got.Streams.Close()
}

func stdinOpenOutlivesItsStream(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Echo: true}, core.IO{Stdin: core.StdinOpen})
	for _, text := range []string{"one", "two"} {
		st, err := s.Supervisor.Streams(s.ctx, ref("a"), core.StreamOptions{Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(st.Stdin, text); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(text))
		if _, err := io.ReadFull(st.Stdout, b); err != nil || string(b) != text {
			t.Errorf("echo %q, %v", b, err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Supervisor.CloseStdin(s.ctx, ref("a")); err != nil {
		t.Fatal(err)
	}
	s.exit(t, ref("a"))
}

func resizeNeedsATerminal(t *testing.T, s *suite) {
	s.start(t, ref("a"), Program{Wait: true}, core.IO{})
	if err := s.Supervisor.Resize(s.ctx, ref("a"), core.Size{Cols: 80, Rows: 25}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Resize: %v", err)
	}
	if err := s.Supervisor.Signal(s.ctx, ref("a"), 9); err != nil {
		t.Error(err)
	}
}

func execsAndMainAreSeparate(t *testing.T, s *suite) {
	main := ref("a")
	strange := core.Ref{Container: "a", Process: core.ProcessID("../../" + strings.Repeat("x", 300) + "\n%/main")}
	named := core.Ref{Container: "a", Process: "main"}
	for i, r := range []core.Ref{main, strange, named} {
		s.start(t, r, Program{Code: 10 + i}, core.IO{})
	}
	for i, r := range []core.Ref{main, strange, named} {
		if x := s.exit(t, r); x.Exit.Code != 10+i {
			t.Errorf("%v: %+v", r, x.Exit)
		}
	}
}

// nothingIsLeftOfProbes: one by one, those that end and those that are killed, with output that is
// read and with more of it than anybody reads. The keeper knows none of them afterwards, and has no
// exit to offer.
func nothingIsLeftOfProbes(t *testing.T, s *suite) {
	held := core.IO{Hold: true}
	for i := range 20 {
		r := core.Ref{Container: "c", Process: core.ProcessID("probe" + strconv.Itoa(i))}
		p := Program{Stdout: "said", Code: i, Wait: i%2 == 1}
		l := s.attach(t, r, p, held, &core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true})
		if p.Wait {
			if err := s.Supervisor.Signal(s.ctx, r, int(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
		} else if got, err := io.ReadAll(l.Streams.Stdout); err != nil || string(got) != "said" {
			t.Errorf("%q, %v", got, err)
		}
		x := s.exit(t, r)
		if p.Wait && x.Exit.Signal != int(unix.SIGKILL) || !p.Wait && x.Exit.Code != i {
			t.Errorf("probe %d: %+v", i, x.Exit)
		}
		for what, do := range map[string]error{"close": l.Streams.Close(), "ack": s.Supervisor.Ack(s.ctx, r), "forget": s.Supervisor.Forget(s.ctx, r)} {
			if do != nil {
				t.Errorf("%s: %v", what, do)
			}
		}
	}
	procs, err := s.Supervisor.Processes(s.ctx)
	if err != nil || len(procs) > 0 {
		t.Errorf("left: %v, %v", procs, err)
	}
	if st, err := s.Supervisor.Status(s.ctx); err != nil || st.Pending != 0 || st.Processes != 0 {
		t.Errorf("status %+v, %v", st, err)
	}
}
