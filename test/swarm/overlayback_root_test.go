package swarm

import (
	"strings"
	"syscall"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// The limits for the return of a killed agent. Other nodes give up one that is silent for 5.6 seconds.
const (
	backIn  = 4 * time.Second // from its death: in the gossip
	sweptIn = 2 * time.Second // from its next start: the records of a task that has ended meanwhile are gone
)

// times scales a bound on a machine that is as slow as LONGSHORE_TEST_PATIENCE says.
func times(bound time.Duration) time.Duration {
	return time.Duration(float64(bound) * roottest.Patience().Minutes())
}

// TestAnAgentIsBackInTheGossipInTime: an agent that is killed, and started again, is in the gossip before other nodes
// take it for dead: they never lose the records of a task that runs on. Those of an ended one go soon.
func TestAnAgentIsBackInTheGossipInTime(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		o := newOverlayStages(t)
		for range 3 {
			o.rounds++
			brief := o.on(o.id(), sleeps, swarmtest.Overlay(backNet, 1, 10))
			o.Assign(brief)
			o.Reaches(o.id(), swarmv1.TaskState_RUNNING)
			o.spy.hears(t, backNet, "name kept.1.kept 10.0.1.9", "name web.1."+o.id()+" 10.0.1.10", "peer 10.0.1.10", "peer 10.0.1.9")
			lost := o.spy.losses("10.0.1.9")
			pid := o.containers()[o.id()].Pid
			died := time.Now()
			o.Kill()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			o.Launch()
			o.spy.hears(t, backNet, "name kept.1.kept 10.0.1.9", "peer 10.0.1.9")
			swept := time.Since(started)
			o.quiet(t)
			back := time.Since(died)
			t.Logf("in the gossip %v after its death, the records of a task that had ended were gone %v after its start", back.Round(time.Millisecond), swept.Round(time.Millisecond))
			if back > times(backIn) {
				t.Errorf("the agent is in the gossip %v after its death, which may be %v", back, times(backIn))
			}
			if swept > times(sweptIn) {
				t.Errorf("the records of a task that has ended are gone %v after the agent's start, which may be %v", swept, times(sweptIn))
			}
			if more := o.spy.losses("10.0.1.9") - lost; more > 0 && back <= backIn {
				t.Errorf("others have lost the records of a task that runs on %d times", more)
			}
			o.Remove(o.id())
			roottest.Eventually(t, "the task is removed", func() bool { return len(o.records(o.worker)) == 1 })
		}
		o.Check()
	})
}

// losses is how often records with an address have gone.
func (s *spy) losses(addr string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, times := range s.lost {
		if strings.HasSuffix(text, " "+addr) {
			n += times
		}
	}
	return n
}
