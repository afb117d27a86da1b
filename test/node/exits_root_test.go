package node

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestDamagedExitRecords: a container ends while the agent is down, then keeper and nest die, and the
// record of its end on the disk is spoiled, which is all that is left of it. The next agent tells the truth or that
// nobody knows, names the record, and removes the container with all that it had.
//
// It runs with LONGSHORE_DAMAGES only.
func TestDamagedExitRecords(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if os.Getenv("LONGSHORE_DAMAGES") == "" {
			t.Skip("it is one of make damages")
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		hows := damages(rand.New(rand.NewPCG(seed, 0)))
		hows["sound"] = func(b []byte) []byte { return b }
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"})
		image := n.Busybox(t)
		cli := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(args...)
			if err != nil {
				t.Fatalf("longshore %s: %v\n%s", strings.Join(args, " "), err, out)
			}
			return out
		}
		cli("volume", "create", "go")
		for how, spoil := range hows {
			id := strings.TrimSpace(cli("run", "-d", "--name", "one", "-v", "go:/go", image, "/bin/sh", "-c", "until [ -e /go/now ]; do sleep 0.1; done; exit 7"))
			n.Kill()
			now := filepath.Join(n.Root, "volumes", "cli", "go", "_data", "now")
			if err := os.WriteFile(now, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var record string
			roottest.Eventually(t, "the keeper records the exit", func() bool {
				found, _ := filepath.Glob(filepath.Join(n.State, "*", "pair-*", "exits", id+"*"))
				if i := slices.IndexFunc(found, func(f string) bool { return !strings.HasSuffix(f, ".new") }); i >= 0 {
					record = found[i]
				}
				return record != ""
			})
			n.KillPair()
			body, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			spoiled := spoil(slices.Clone(body))
			if err := os.WriteFile(record, spoiled, 0o600); err != nil {
				t.Fatal(err)
			}
			n.Up()
			var why string
			roottest.Eventually(t, how+": the end is told", func() bool {
				why = cli("why", "one")
				return strings.Contains(why, "lost:") || strings.Contains(why, "code 7")
			})
			if same := slices.Equal(body, spoiled); same != strings.Contains(why, "code 7") {
				t.Errorf("%s, changed %v: %s", how, !same, why)
			}
			if said := n.LogTail(20000); !slices.Equal(body, spoiled) && !strings.Contains(said, record) {
				t.Errorf("%s: the agent does not name %s:\n%s", how, record, said)
			}
			cli("rm", "one")
			if err := os.Remove(now); err != nil {
				t.Fatal(err)
			}
			if left, err := filepath.Glob(filepath.Join(n.State, "*", "pair-*", "exits", id+"*")); err != nil || len(left) > 0 {
				t.Errorf("%s: left after the removal: %v, %v", how, left, err)
			}
		}
		cli("volume", "rm", "go")
		n.Check()
	})
}
