package mesos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
)

// look collects as if at a later time.
func (n *testNode) look(later time.Duration) {
	n.t.Helper()
	c := collector{n.server, time.Hour}
	if err := c.collect(n.t.Context(), time.Now().Add(later)); err != nil {
		n.t.Error(err)
	}
}

func (n *testNode) has(sandbox string, want bool) {
	n.t.Helper()
	if _, err := os.Stat(filepath.Join(n.work, "containers", sandbox)); (err == nil) != want {
		n.t.Errorf("sandbox %s: %v, want it there: %v", sandbox, err, want)
	}
}

// TestEndedOnesAreCleared: when their time is over, after the agent's restart too, and
// nothing that runs, or that something runs in.
func TestEndedOnesAreCleared(t *testing.T) {
	n := newTestNode(t)
	nested := func(call, name string) string {
		return `{"type":"` + call + `","` + map[string]string{"LAUNCH_CONTAINER": "launch_container", "WAIT_CONTAINER": "wait_container"}[call] + `":{"container_id":{"value":"` + name + `","parent":{"value":"a"}}` +
			map[string]string{"LAUNCH_CONTAINER": `,"command":{"value":"serve"}`}[call] + `}}`
	}
	n.is(launchA, 200, "")
	n.is(nested("LAUNCH_CONTAINER", "b"), 200, "")
	n.is(nested("LAUNCH_CONTAINER", "c"), 200, "")
	n.Supervisor.Exit(core.Ref{Container: n.container("a.b").ID}, 0)
	n.is(nested("WAIT_CONTAINER", "b"), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	n.look(59 * time.Minute)
	n.is(nested("WAIT_CONTAINER", "b"), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	n.shutdown()
	n.Restart()
	n.serve()
	n.look(61 * time.Minute)
	n.is(nested("WAIT_CONTAINER", "b"), 404, "Container a.b cannot be found")
	n.has("a/containers/b", false)
	n.has("a/containers/c", true)
	n.is(launchA, 202, "")
	n.is(nested("LAUNCH_CONTAINER", "c"), 202, "")

	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.look(61 * time.Minute)
	n.is(waitA, 404, "Container a cannot be found")
	n.has("a", false)
	metrics := map[string]float64{}
	for _, m := range n.answer(`{"type":"GET_METRICS","get_metrics":{}}`).GetGetMetrics().GetMetrics() {
		metrics[m.GetName()] = m.GetValue()
	}
	if strings.Contains(fmt.Sprint(n.answer(`{"type":"GET_FLAGS"}`)), "gc_delay") {
		t.Error("what is kept has a delay")
	}
	if metrics["gc/path_removals_succeeded"] != 2 || metrics["gc/path_removals_failed"] != 0 {
		t.Errorf("metrics %v", metrics)
	}
	n.shutdown()
	n.gcDelay = DefaultConfig().GCDelay
	n.serve()
	if flags := fmt.Sprint(n.answer(`{"type":"GET_FLAGS"}`)); !strings.Contains(flags, "1weeks") {
		t.Errorf("flags %s", flags)
	}
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestSandboxesWithoutRecordsAreCleared: those of containers that a reboot ended, counted from
// their last use, and of launches that were cut.
func TestSandboxesWithoutRecordsAreCleared(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	if err := os.WriteFile(filepath.Join(n.work, "containers", "a", "result"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.look(3 * time.Hour) // a is in use three hours from now
	n.shutdown()
	n.Stop()
	n.Options.Store = state.NewMemory(0)
	n.Reboot()
	n.Start()
	n.serve()
	if _, err := n.server.tree.Make("cut"); err != nil {
		t.Fatal(err)
	}
	n.look(3*time.Hour + 59*time.Minute)
	n.has("cut", false)
	n.has("a/result", true)
	n.look(4*time.Hour + time.Minute)
	n.has("a", false)

	// One that is on its way has a sandbox alone, however long it takes.
	unlock, err := n.server.ids.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.server.tree.Make("b"); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		n.look(2 * time.Hour)
	}()
	n.has("b", true)
	unlock()
	<-looked
	n.has("b", false)
}
