package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// stops records the stops of its containers. The one of "bad" fails.
type stops struct {
	list []core.Container
	mu   sync.Mutex
	got  []core.ID
}

func (s *stops) Containers(context.Context, core.Filter) ([]core.Container, error) {
	return s.list, nil
}

func (s *stops) StopContainer(_ context.Context, id core.ID, opts engine.StopOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if opts.Request.Call == core.ShutdownCall && opts.Grace == nil {
		s.got = append(s.got, id)
	}
	if id == "bad" {
		return errors.New("it does not end")
	}
	return nil
}

func TestAShutdownStopsAllThatRun(t *testing.T) {
	s := &stops{}
	for id, state := range map[core.ID]core.ContainerState{
		"bad": core.ContainerRunning, "created": core.ContainerCreated, "exited": core.ContainerExited, "paused": core.ContainerPaused, "running": core.ContainerRunning,
	} {
		c := core.Container{State: state}
		c.ID = id
		s.list = append(s.list, c)
	}
	var log strings.Builder
	stopAll(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), s)
	slices.Sort(s.got)
	if want := []core.ID{"bad", "paused", "running"}; !slices.Equal(s.got, want) {
		t.Errorf("stopped %v, wanted %v", s.got, want)
	}
	if n := strings.Count(log.String(), "could not stop"); n != 1 || !strings.Contains(log.String(), "container=bad") {
		t.Errorf("the log: %s", &log)
	}
}
