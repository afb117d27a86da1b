package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore/longshore/internal/handover"
)

// TestTheKeeperFollowsTheAgentLater: a call that waited for the next agent has time to end before the keeper is replaced too.
func TestTheKeeperFollowsTheAgentLater(t *testing.T) {
	for name, c := range map[string]struct {
		p    func() *nextProgram
		want time.Duration
	}{
		"first":      {func() *nextProgram { return &nextProgram{} }, 0},
		"starting":   {func() *nextProgram { return &nextProgram{passed: handover.Passed{Before: 3}} }, callsPatience},
		"serving":    {func() *nextProgram { return &nextProgram{served: time.Now().Add(-callsPatience / 3)} }, callsPatience - callsPatience/3},
		"long since": {func() *nextProgram { return &nextProgram{served: time.Now().Add(-callsPatience)} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, start := c.p(), time.Now()
				if err := p.letCallsEnd(t.Context()); err != nil || time.Since(start) != c.want {
					t.Errorf("after %v, %v; want %v", time.Since(start), err, c.want)
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				p = &nextProgram{served: time.Now()}
				if err := p.letCallsEnd(ended); !errors.Is(err, context.Canceled) {
					t.Errorf("a canceled call: %v", err)
				}
			})
		})
	}
}
