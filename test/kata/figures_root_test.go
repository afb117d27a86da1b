package kata

import (
	"os"
	"path/filepath"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/bench/guest"
	"github.com/longshore/longshore/test/nodetest"
)

// figuresEnv asks for the figures, which mean nothing while other tests run.
const figuresEnv = "LONGSHORE_KATA_FIGURES"

// TestFigures takes them on the machine that it runs on; docs/testing.md says how that is a
// guest. The bound of each is checked.
func TestFigures(t *testing.T) {
	if os.Getenv(figuresEnv) == "" {
		t.Skip("takes figures, when " + figuresEnv + " is set")
	}
	roottest.Run(t, func(t *testing.T) {
		bin := nodetest.Bin(t)
		_, err := guest.Measure(t.Context(), guest.Options{
			Agent: filepath.Join(bin, "longshore-guest"), Bare: filepath.Join(bin, "bench", "bareagent"), Runc: guest.Look(),
			Dir: t.TempDir(), Cgroup: roottest.Cgroup(t), Starts: 20, Runs: 20, Out: os.Stdout,
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The budgets of a guest's agent. The bench has the bounds that are beside others' figures.
const (
	maxFile       = 10e6     // bytes, the keeper included
	maxKeeperNest = 3 * 1024 // KiB of their own
)

// TestTheAgentIsSmall: in a guest the file is memory, and its keeper and nest have little of
// their own as long as nothing of the agent is made ready in them.
func TestTheAgentIsSmall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		file, err := os.Stat(filepath.Join(nodetest.Bin(t), "longshore-guest"))
		if err != nil {
			t.Fatal(err)
		}
		if file.Size() > maxFile {
			t.Errorf("longshore-guest has %d bytes, at most %d are allowed", file.Size(), int(maxFile))
		}
		a := start(t)
		if _, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{}); err != nil { // it has begun
			t.Fatal(err)
		}
		keeper := theKeeper(t)
		nest, err := parentOf(keeper)
		if err != nil {
			t.Fatal(err)
		}
		if own := private(t, keeper, nest); own > maxKeeperNest {
			t.Errorf("keeper and nest have %d KiB of their own, at most %d are allowed", own, maxKeeperNest)
		}
	})
}

// private is the memory that processes have of their own, in KiB.
func private(t *testing.T, pids ...int) int64 {
	t.Helper()
	m, err := guest.MemoryOf(pids...)
	if err != nil {
		t.Fatal(err)
	}
	return m.Private
}
