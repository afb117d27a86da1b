package control

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
)

func TestPickPrefersTheBestMatch(t *testing.T) {
	objects := []object{
		{Meta: core.Meta{ID: "aaaa1", Owner: core.OwnerCLI, Key: "web"}},
		{Meta: core.Meta{ID: "aaaa2", Owner: core.OwnerCRI, Key: "web"}},
		{Meta: core.Meta{ID: "bbbb1", Owner: core.OwnerCRI, Key: "db"}},
		{Meta: core.Meta{ID: "web99", Owner: core.OwnerNomad, Key: "job"}},
		{Meta: core.Meta{ID: "cccc1", Owner: core.OwnerCRI, Key: "two"}},
		{Meta: core.Meta{ID: "cccc2", Owner: core.OwnerNomad, Key: "two"}},
		{core.Meta{ID: "dddd1", Owner: core.OwnerSwarm, Key: "task"}, "web.1.task"},
	}
	for name, want := range map[string]int{"web": 0, "aaaa2": 1, "db": 2, "bbb": 2, "web9": 3, "task": 6, "web.1.task": 6, "web.1": -1, "none": -1} {
		if got, err := pick(name, objects); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"two", "aaaa", ""} {
		if got, err := pick(name, objects); err == nil {
			t.Errorf("%s: %d", name, got)
		}
	}
}
