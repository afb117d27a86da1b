package sleep

import (
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestTheGuidesCommandsWork runs each command of docs/guide/sandboxes.md.
func TestTheGuidesCommandsWork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		guide, err := os.ReadFile("../../docs/guide/sandboxes.md")
		if err != nil {
			t.Skipf("no guide: %v", err)
		}
		b := newBed(t)
		ran := 0
		for line := range strings.Lines(string(guide)) {
			command, ok := strings.CutPrefix(line, "    longshore ")
			if !ok {
				continue
			}
			ran++
			out := b.Must(strings.Fields(strings.ReplaceAll(command, "IMAGE", b.image))...)
			switch {
			case strings.HasPrefix(command, "ps") && !strings.Contains(out, "Asleep"):
				t.Errorf("%s: %s", command, out)
			case strings.HasPrefix(command, "exec") && b.Inspect("box").GetState() != "running":
				t.Errorf("after %s: %v", command, b.Inspect("box"))
			}
		}
		if ran < 10 {
			t.Errorf("the guide has %d commands", ran)
		}
		b.Check()
	})
}
