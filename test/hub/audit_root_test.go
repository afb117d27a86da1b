package hub

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestWhoDidWhatAtTheHub: each changing request and each read of the token has its line, also after a kill; a removed line is found.
func TestWhoDidWhatAtTheHub(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodetest.Bridge(t, "hub0", hubIP+"/24")
		h := nodetest.StartHub(t, hubIP+":4000")
		dir := filepath.Join(h.Dir, "store", "audit")
		audit := func(args ...string) (string, error) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), append([]string{"audit", "--dir", dir}, args...)...)
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		h.Must("", "token")
		h.Must("", "nodes")
		h.Must("", "token", "--rotate")
		h.Must("", "operator", "token", "ann", "--scope", "apply")
		h.Kill()
		h.Up()
		if _, err := h.CLI("", "node", "drain", "nobody"); err == nil {
			t.Error("an unknown node is drained")
		}
		out, err := audit("--json")
		if err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		var calls []string
		for line := range strings.Lines(out) {
			if _, rest, ok := strings.Cut(line, `"call":"`); ok {
				call, rest, _ := strings.Cut(rest, `"`)
				outcome := "ok"
				if strings.Contains(rest, `"outcome":"failed"`) {
					outcome = "failed"
				}
				if !strings.Contains(rest, `"peer":"uid 0"`) || !strings.Contains(line, `"face":"hub"`) {
					t.Errorf("who? %s", line)
				}
				calls = append(calls, call+" "+outcome)
			}
		}
		if got := strings.Join(calls, "\n"); got != "GET /v1/token ok\nGET /v1/token ok\nPOST /v1/token/rotate ok\nPOST /v1/operators ok\nGET /v1/token ok\nPATCH /v1/nodes/nobody failed" {
			t.Errorf("%s", got)
		}
		if out, err := audit("--verify"); err != nil || !strings.Contains(out, "are as they were written") {
			t.Errorf("%s, %v", out, err)
		}
		h.Kill()
		file := filepath.Join(dir, "audit.log")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(b, []byte("\n"))
		kept := bytes.Join(append(append([][]byte{}, lines[:2]...), lines[3:]...), nil)
		if err := os.WriteFile(file, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := audit("--verify"); err == nil {
			t.Errorf("a removed line is not found: %s", out)
		}
	})
}
