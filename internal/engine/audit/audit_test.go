package audit_test

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/audit"
	"github.com/longshore/longshore/internal/state"
)

// TestNamesOfProcesses: an ID may be used again when its process has ended; two processes at a
// time with one ID, or two ends of one process, are faults.
func TestNamesOfProcesses(t *testing.T) {
	for log, want := range map[string]string{
		"S s e s e E R":   "",
		"S s e s E R":     "started and never ended",
		"S s s e E R":     "started twice",
		"S s e e E R":     "ended twice",
		"S E S E R":       "started twice",
		"C S E C S E R":   "",
		"C E C S E R":     "",
		"C S C E R":       "created again while it ran",
		"S E E R":         "ended twice",
		"S s e E R s":     "was removed before",
		"S s e s e e E R": "ended twice",
	} {
		store := state.NewMemory(0)
		err := store.Update(func(tx core.Tx) error {
			for step := range strings.FieldsSeq(log) {
				ev := core.Event{Container: "c", Process: core.Main, Kind: map[string]core.EventKind{
					"C": core.EventContainerCreated, "S": core.EventContainerStarted, "E": core.EventContainerExited, "R": core.EventContainerRemoved, "s": core.EventProcessStarted, "e": core.EventProcessExited,
				}[step]}
				if step == "s" || step == "e" {
					ev.Process = "p"
				}
				if _, err := tx.Append(ev); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var found []audit.Fault
		if err := store.View(func(tx core.Tx) (err error) {
			found, err = audit.Events(tx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0].Detail, want)) {
			t.Errorf("%s: %v, want %q", log, found, want)
		}
	}
}
