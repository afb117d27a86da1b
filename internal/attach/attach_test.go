package attach_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node with a running container and its clients.
type rig struct {
	*enginetest.Node
	t *testing.T
	c core.Container
}

func newRig(t *testing.T, stdio core.IO) *rig {
	t.Helper()
	r := &rig{Node: enginetest.New(t), t: t}
	img := r.AddImage("busybox", imagespec.ImageConfig{}, nil)
	sb := r.Pod(core.OwnerCLI, "p")
	var err error
	r.c, err = r.client().CreateContainer(t.Context(), core.ContainerConfig{
		Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("main"), IO: stdio, Run: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) client() *engine.Client { return r.As(core.OwnerCLI) }

func (r *rig) exec() attach.Exec {
	return attach.Exec{Engine: r.client(), Log: slog.New(slog.DiscardHandler), Owner: core.OwnerCLI, Call: "test"}
}

// start runs a program as an exec of a client.
func (r *rig) start(tty bool, prog enginetest.Program) *attach.Session {
	r.t.Helper()
	r.Supervisor.Program("prog", prog)
	s, err := r.exec().Start(r.t.Context(), r.c.ID, attach.Held(&specs.Process{Args: []string{"prog"}, Terminal: tty}, core.StdinOpen, core.Size{}))
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// attached is a session of the main process.
func (r *rig) attached(want core.StreamOptions) *attach.Session {
	r.t.Helper()
	s := &attach.Session{Engine: r.client(), Ref: core.Ref{Container: r.c.ID}}
	var err error
	if s.Streams, err = r.client().Streams(r.t.Context(), s.Ref, want); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// collected is output as a client gets it.
type collected struct {
	mu   sync.Mutex // guards text, all
	text [2]strings.Builder
	all  strings.Builder
	some chan struct{} // gets one for each piece, unless it is nil
}

func (c *collected) add(stderr bool, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	which := 0
	if stderr {
		which = 1
	}
	c.text[which].Write(data)
	c.all.Write(data)
	if c.some != nil {
		c.some <- struct{}{}
	}
	return nil
}

func talk(p *enginetest.Process) int {
	for i := range 1000 {
		_, _ = fmt.Fprintf(p.Stdout(), "out %d\n", i)
		_, _ = fmt.Fprintf(p.Stderr(), "err %d\n", i)
	}
	return 7
}

func lines(what string) string {
	var b strings.Builder
	for i := range 1000 {
		_, _ = fmt.Fprintf(&b, "%s %d\n", what, i)
	}
	return b.String()
}

// TestOutputComesWhole, each stream in its order, and then the exit.
func TestOutputComesWhole(t *testing.T) {
	r := newRig(t, core.IO{})
	s := r.start(false, talk)
	var got collected
	s.Output = got.add
	a, err := s.Run(t.Context())
	if err != nil || a.Exit.Code != 7 || got.text[0].String() != lines("out") || got.text[1].String() != lines("err") {
		t.Errorf("%+v, %v, %d and %d bytes", a, err, got.text[0].Len(), got.text[1].Len())
	}
}

// TestOutputComesFromALog: the streams keep the order of the writes, and a client can skip earlier
// output.
func TestOutputComesFromALog(t *testing.T) {
	sink := core.Sink{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: filepath.Join(t.TempDir(), "log")}
	r := newRig(t, core.IO{Sinks: []core.Sink{sink}})
	p := r.Supervisor.Process(core.Ref{Container: r.c.ID})
	_, _ = io.WriteString(p.Stdout(), "before\n")
	whole, rest := new(collected), &collected{some: make(chan struct{}, 100)}
	var all sync.WaitGroup
	serve := func(c *collected, tail int, input func(context.Context, *attach.Input) error) {
		s := attach.Session{Engine: r.client(), Ref: p.Ref, Log: &sink, Output: c.add, Input: input}
		s.From.Tail = tail
		all.Go(func() {
			if a, err := s.Run(t.Context()); err != nil || a.Exit.Code != 3 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	begun := make(chan struct{})
	serve(whole, 0, nil)
	serve(rest, -1, func(context.Context, *attach.Input) error { close(begun); return nil })
	<-begun // a client that may send input misses nothing of the answer
	_, _ = io.WriteString(p.Stdout(), "one\n")
	_, _ = io.WriteString(p.Stderr(), "two\n")
	<-rest.some
	r.Supervisor.Exit(p.Ref, 3)
	all.Wait()
	if got, want := whole.all.String(), "before\none\ntwo\n"; got != want {
		t.Errorf("the whole log: %q, want %q", got, want)
	}
	if got, want := rest.all.String(), "one\ntwo\n"; got != want || rest.text[1].String() != "two\n" {
		t.Errorf("what is new: %q, want %q", got, want)
	}
}

// TestASessionEndsWithItsClient, however that goes, and the process does not.
func TestASessionEndsWithItsClient(t *testing.T) {
	gone := errors.New("gone")
	for name, leave := range map[string]func(s *attach.Session, cancel context.CancelCauseFunc){
		"its context": func(_ *attach.Session, cancel context.CancelCauseFunc) { cancel(gone) },
		"its output": func(s *attach.Session, _ context.CancelCauseFunc) {
			s.Output = func(bool, []byte) error { return gone }
		},
		"its input": func(s *attach.Session, _ context.CancelCauseFunc) {
			s.Input = func(context.Context, *attach.Input) error { return gone }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, core.IO{})
			s := r.attached(core.StreamOptions{Stdout: true})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			leave(s, cancel)
			p := r.Supervisor.Process(s.Ref)
			if err := p.Write(1, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Run(ctx); !errors.Is(err, gone) {
				t.Errorf("it ended with %v", err)
			}
			if c, err := r.client().Container(t.Context(), r.c.ID); err != nil || c.State != core.ContainerRunning {
				t.Errorf("the container is %s, %v", c.State, err)
			}
			s.Close() // once more
		})
	}
}

// TestTheEndOfInputEndsNothingElse: the process gets all of it and its end, and its
// answer still comes.
func TestTheEndOfInputEndsNothingElse(t *testing.T) {
	cat := func(p *enginetest.Process) int {
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 0
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<15)
	for name, input := range map[string]func(context.Context, *attach.Input) error{
		"a reader": func(_ context.Context, to *attach.Input) error { return to.Copy(bytes.NewReader(data)) },
		"messages": func(ctx context.Context, to *attach.Input) error {
			for i := 0; i < len(data); i += 1000 {
				to.Send(ctx, bytes.Clone(data[i:min(i+1000, len(data))]))
			}
			return nil
		},
		"an end of its own": func(ctx context.Context, to *attach.Input) error {
			to.Send(ctx, data)
			to.End(ctx)
			to.Send(ctx, []byte("too late"))
			<-ctx.Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, core.IO{})
			s := r.start(false, cat)
			var got collected
			s.Output, s.Input, s.EndsInput = got.add, input, true
			if _, err := s.Run(t.Context()); err != nil || got.all.String() != string(data) {
				t.Errorf("%d bytes of %d, %v", got.all.Len(), len(data), err)
			}
		})
	}
}

// TestTheModeOfStdinSaysWhenItEnds, unless the process is its client's own.
func TestTheModeOfStdinSaysWhenItEnds(t *testing.T) {
	for _, mode := range []core.StdinMode{core.StdinOpen, core.StdinOnce} {
		r := newRig(t, core.IO{Stdin: mode})
		p := r.Supervisor.Process(core.Ref{Container: r.c.ID})
		ended := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, p.Stdin)
			close(ended)
		}()
		for range 2 {
			s := r.attached(core.StreamOptions{Stdin: true, Stdout: true})
			sent := make(chan struct{})
			s.Input = func(ctx context.Context, to *attach.Input) error {
				defer close(sent)
				to.Send(ctx, []byte("x"))
				return nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-sent
				if mode == core.StdinOnce {
					<-ended
				}
				cancel()
			}()
			if _, err := s.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", mode, err)
			}
		}
		select {
		case <-ended:
			if mode == core.StdinOpen {
				t.Error("an open input has ended with its client")
			}
		default:
		}
		r.Supervisor.Exit(p.Ref, 0)
		<-ended
	}
}

// TestSizesPassInputThatWaits: a process that does not read still gets signals and
// sizes.
func TestSizesPassInputThatWaits(t *testing.T) {
	r := newRig(t, core.IO{})
	s := r.start(true, func(p *enginetest.Process) int {
		<-p.Killed
		return 0
	})
	s.Input = func(ctx context.Context, to *attach.Input) error {
		for range 10 {
			to.Send(ctx, []byte("nobody reads this"))
		}
		to.Resize(ctx, core.Size{Cols: 80}) // none
		to.Resize(ctx, core.Size{Cols: 80, Rows: 25})
		return to.Engine.Signal(ctx, to.Ref, 15, core.StopRequest{})
	}
	a, err := s.Run(t.Context())
	if size := r.Supervisor.Process(s.Ref).Size; err != nil || a.Exit.Signal != 15 || size != (core.Size{Cols: 80, Rows: 25}) {
		t.Errorf("%+v, %v, size %v", a, err, size)
	}
}

// TestInputThatNobodyTakesIsDropped once the process has closed its input, and does
// not hold its client up.
func TestInputThatNobodyTakesIsDropped(t *testing.T) {
	much := strings.Repeat("x", 1<<20)
	for name, send := range map[string]func(context.Context, *attach.Input) error{
		"a reader": func(_ context.Context, to *attach.Input) error { return to.Copy(strings.NewReader(much)) },
		"messages": func(ctx context.Context, to *attach.Input) error {
			for range 100 {
				to.Send(ctx, []byte(much))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, core.IO{})
			all := make(chan struct{})
			s := r.start(false, func(p *enginetest.Process) int {
				_ = p.Stdin.(io.Closer).Close()
				<-all
				return 4
			})
			s.Input = func(ctx context.Context, to *attach.Input) error {
				defer close(all)
				return send(ctx, to)
			}
			if a, err := s.Run(t.Context()); err != nil || a.Exit.Code != 4 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

// TestSerial: one call at a time, though both streams have output.
func TestSerial(t *testing.T) {
	r := newRig(t, core.IO{})
	s := r.start(false, talk)
	n := 0
	s.Output = attach.Serial(func(_ bool, data []byte) error { n += len(data); return nil }) // the race detector looks
	if _, err := s.Run(t.Context()); err != nil || n != len(lines("out"))+len(lines("err")) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestASessionIsOfItsOwnProcess: it reports its own process's end, even if another process got the
// name before it looked.
func TestASessionIsOfItsOwnProcess(t *testing.T) {
	r := newRig(t, core.IO{})
	cfg := attach.Held(&specs.Process{Args: []string{"sh"}}, core.StdinClosed, core.Size{})
	cfg.ID = "s"
	first, err := r.exec().Start(t.Context(), r.c.ID, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Supervisor.Exit(first.Ref, 5)
	if _, err := r.client().Wait(t.Context(), first.Ref); err != nil {
		t.Fatal(err)
	}
	if err := r.client().RemoveProcess(t.Context(), first.Ref, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	second, err := r.exec().Start(t.Context(), r.c.ID, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := first.Run(t.Context()); err != nil || a.Exit.Code != 5 {
		t.Errorf("%+v, %v", a, err)
	}
	r.exec().End(t.Context(), second, true)
}

// TestCollect: all of the output, the exit, and no record that is left.
func TestCollect(t *testing.T) {
	r := newRig(t, core.IO{})
	r.Supervisor.Program("talk", talk)
	var background sync.WaitGroup
	for _, x := range []attach.Exec{r.exec(), func() attach.Exec { x := r.exec(); x.Background = &background; return x }()} {
		var stdout, stderr bytes.Buffer
		a, err := x.Collect(t.Context(), r.c.ID, &specs.Process{Args: []string{"talk"}}, 0, attach.Writers(&stdout, &stderr))
		if err != nil || a.Exit.Code != 7 || stdout.String() != lines("out") || stderr.String() != lines("err") {
			t.Errorf("%+v, %v, %d and %d bytes", a, err, stdout.Len(), stderr.Len())
		}
		background.Wait()
		r.noExecs()
	}
	if _, err := r.exec().Collect(t.Context(), r.c.ID, &specs.Process{Args: []string{"missing"}}, 0, nil); !errdefs.IsNotFound(err) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestWhatTakesTooLongIsCut, and so is an exec that its client gives up.
func TestWhatTakesTooLongIsCut(t *testing.T) {
	r := newRig(t, core.IO{})
	for _, limit := range []time.Duration{1, 20 * time.Millisecond} { // before it has started, and later
		if _, err := r.exec().Collect(t.Context(), r.c.ID, &specs.Process{Args: []string{"sh"}}, limit, nil); !errors.Is(err, attach.ErrTimeout) {
			t.Errorf("after %s: %v", limit, err)
		}
		r.noExecs()
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.Supervisor.Program("told", func(p *enginetest.Process) int {
		cancel()
		<-p.Killed
		return 0
	})
	if _, err := r.exec().Collect(ctx, r.c.ID, &specs.Process{Args: []string{"told"}}, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	r.noExecs()
}

func (r *rig) noExecs() {
	r.t.Helper()
	c, err := r.client().Container(r.t.Context(), r.c.ID)
	if err != nil || len(c.Execs) > 0 {
		r.t.Errorf("execs are left: %v, %v", c.Execs, err)
	}
	r.Settle()
	r.Clean()
}
