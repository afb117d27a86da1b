package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/state"
)

func TestRefusalsAreAnnouncedOnce(t *testing.T) {
	store := state.NewMemory(1000)
	err := store.Update(func(tx core.Tx) error {
		return tx.Containers().Put(core.Container{Meta: core.Meta{ID: "c"}, Sandbox: "s", State: core.ContainerRunning})
	})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var list []core.EgressRefusal
	r := &refusals{records: scope.Records{Store: store}, last: func(core.ID) []core.EgressRefusal { return list }, log: slog.Default(), since: start, boxes: map[core.ID]*announced{}}
	notes := func() (all []string) {
		err := store.View(func(tx core.Tx) error {
			for ev, err := range tx.Events(0) {
				if err != nil {
					return err
				}
				all = append(all, ev.Note)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	list = []core.EgressRefusal{
		{At: start.Add(-time.Second), Name: "old.example"},
		{At: start.Add(1), Name: "a\nb"},
		{At: start.Add(2), Addr: netip.MustParseAddr("192.0.2.1"), Proto: "tcp", Port: 80},
		{At: start.Add(3), Addr: netip.MustParseAddr("192.0.2.1"), Proto: "tcp", Port: 80},
	}
	r.round(map[core.ID]uint64{"s": 3})
	r.round(map[core.ID]uint64{"s": 4})
	want := []string{`the egress list refused "a\nb"`, "the egress list refused tcp 192.0.2.1:80"}
	if got := notes(); !slices.Equal(got, want) {
		t.Errorf("events: %q, want %q", got, want)
	}
	for i := range 3 * maxAnnounced {
		list = append(list, core.EgressRefusal{At: start.Add(4), Name: fmt.Sprintf("n%d.example", i)})
	}
	r.round(map[core.ID]uint64{"s": 400})
	if n := len(notes()); n != 2+roundEvents {
		t.Errorf("%d events after one more round", n)
	}
	for range maxAnnounced {
		r.round(map[core.ID]uint64{"s": 400})
	}
	if n := len(notes()); n != maxAnnounced {
		t.Errorf("%d events, want %d", n, maxAnnounced)
	}
	r.round(map[core.ID]uint64{})
	if len(r.boxes) != 0 {
		t.Errorf("sandboxes that are gone: %v", r.boxes)
	}
}
