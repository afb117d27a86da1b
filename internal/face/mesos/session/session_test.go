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

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
)

// collect keeps what is sent, by kind.
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

func pipes() (s *Session, stdout, stderr *io.PipeWriter) {
	ro, wo := io.Pipe()
	re, we := io.Pipe()
	return &Session{Streams: &core.Streams{Stdout: ro, Stderr: re, Close: func() error {
		return errors.Join(ro.CloseWithError(io.ErrClosedPipe), re.CloseWithError(io.ErrClosedPipe))
	}}}, wo, we
}

func opened(send Send) func() (Send, error) { return func() (Send, error) { return send, nil } }

func TestOutputGoesToAllWhoAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stdout, stderr := pipes()
		var main, onlooker collect
		stuck := func(ctx context.Context, _ *mesosagent.ProcessIO) error { <-ctx.Done(); return ctx.Err() }
		slow, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(t.Context(), main.send, time.Minute); err != nil {
				t.Errorf("run: %v", err)
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
		for i := range 3 * backlog { // far more than the one who is stuck can have
			line := fmt.Sprintf("line %d\n", i)
			want += line
			_, _ = io.WriteString(stdout, line)
			synctest.Wait() // the other onlooker keeps up
		}
		_, _ = io.WriteString(stderr, "oh")
		<-time.After(150 * time.Second)
		_ = stdout.Close()
		_ = stderr.Close()
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
		s, stdout, _ := pipes()
		broken := errors.New("broken")
		done := make(chan error, 1)
		go func() {
			done <- s.Run(t.Context(), func(_ context.Context, m *mesosagent.ProcessIO) error {
				if m.GetType() == mesosagent.ProcessIO_DATA {
					return broken
				}
				return nil
			}, time.Minute)
		}()
		_, _ = io.WriteString(stdout, "x")
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
	tab.End("a.s", &core.Autopsy{Exit: core.Exit{Code: 3}})
	if a, ok := tab.Past("a.s"); !ok || a.Exit.Code != 3 || tab.Live("a.s") != nil {
		t.Errorf("%v %v", a, ok)
	}
	for i := range remembered {
		id := fmt.Sprintf("b.%d", i)
		tab.Begin(id, s)
		tab.End(id, &core.Autopsy{})
	}
	if _, ok := tab.Past("a.s"); ok {
		t.Error("the oldest is still remembered")
	}
	tab.Forget("b")
	if _, ok := tab.Past("b.7"); ok || len(tab.order) != 0 || len(tab.past) != 0 {
		t.Errorf("%d are remembered", len(tab.past))
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
