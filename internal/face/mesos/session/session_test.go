package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// collect keeps sent data, by kind.
type collect struct {
	mu    sync.Mutex
	text  map[mesosagent.ProcessIO_Data_Type]string
	beats int
}

func (c *collect) send(_ context.Context, m *mesosagent.ProcessIO) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.GetType() == mesosagent.ProcessIO_CONTROL {
		c.beats++
		return nil
	}
	if c.text == nil {
		c.text = map[mesosagent.ProcessIO_Data_Type]string{}
	}
	c.text[m.GetData().GetType()] += string(m.GetData().GetData())
	return nil
}

// started returns a session of a process that obeys the test.
func started(t *testing.T) (s *Session, p *enginetest.Process, exit func()) {
	t.Helper()
	n := enginetest.New(t)
	c := n.Running(n.Pod(core.OwnerMesos, "a"), "a", n.AddImage("busybox", imagespec.ImageConfig{}, nil), "serve")
	at, err := attach.Exec{Engine: n.As(core.OwnerMesos)}.Start(t.Context(), c.ID, attach.Held(&specs.Process{Args: []string{"dbg"}}, core.StdinOpen, core.Size{}))
	if err != nil {
		t.Fatal(err)
	}
	return &Session{Session: at}, n.Supervisor.Process(at.Ref), func() { n.Supervisor.Exit(at.Ref, 3) }
}

func opened(send Send) func() (Send, error) { return func() (Send, error) { return send, nil } }

func TestOutputGoesToAllWhoAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, exit := started(t)
		var main, onlooker collect
		stuck := func(ctx context.Context, _ *mesosagent.ProcessIO) error { <-ctx.Done(); return ctx.Err() }
		slow, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if a, err := s.Run(t.Context(), main.send, time.Minute); err != nil || a.Exit.Code != 3 {
				t.Errorf("run: %+v, %v", a, err)
			}
		})
		wg.Go(func() { _ = s.Watch(slow, opened(stuck), time.Minute) })
		wg.Go(func() {
			if err := s.Watch(t.Context(), opened(onlooker.send), time.Minute); err != nil {
				t.Errorf("watch: %v", err)
			}
		})
		synctest.Wait()
		want := ""
		for i := range 3 * watcherBacklog { // far more than the stuck one can have
			line := fmt.Sprintf("line %d\n", i)
			want += line
			_, _ = io.WriteString(p.Stdout(), line)
			synctest.Wait() // the other onlooker keeps up
		}
		_, _ = io.WriteString(p.Stderr(), "oh")
		<-time.After(150 * time.Second)
		exit()
		leave()
		wg.Wait()
		for name, c := range map[string]*collect{"main": &main, "onlooker": &onlooker} {
			if c.text[mesosagent.ProcessIO_Data_STDOUT] != want || c.text[mesosagent.ProcessIO_Data_STDERR] != "oh" || c.beats < 2 {
				t.Errorf("%s has %d bytes, %q, %d beats", name, len(c.text[mesosagent.ProcessIO_Data_STDOUT]), c.text[mesosagent.ProcessIO_Data_STDERR], c.beats)
			}
		}
		if err := s.Watch(t.Context(), opened(main.send), time.Minute); err != nil {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestARunEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, _ := started(t)
		broken := errors.New("broken")
		done := make(chan error, 1)
		go func() {
			_, err := s.Run(t.Context(), func(_ context.Context, m *mesosagent.ProcessIO) error {
				if m.GetType() == mesosagent.ProcessIO_DATA {
					return broken
				}
				return nil
			}, time.Minute)
			done <- err
		}()
		_, _ = io.WriteString(p.Stdout(), "x")
		if err := <-done; !errors.Is(err, broken) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestTable(t *testing.T) {
	var tab Table
	if tab.Live("a.s") != nil {
		t.Error("a session out of nothing")
	}
	s := &Session{}
	tab.Begin("a.s", s)
	if tab.Live("a.s") != s {
		t.Error("it is not found")
	}
	tab.End("a.s")
	if tab.Live("a.s") != nil {
		t.Error("it is live after its end")
	}
	release, ok := tab.Input("a.s")
	if _, again := tab.Input("a.s"); !ok || again {
		t.Errorf("input: %v, again %v", ok, again)
	}
	release()
	if _, ok := tab.Input("a.s"); !ok {
		t.Error("its place is not free again")
	}
}
