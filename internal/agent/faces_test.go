package agent

import (
	"reflect"
	"testing"

	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/core"
)

// TestEveryFaceOfTheConfigIsInTheTable: each section [face.NAME] has one entry of that name, no two
// entries share an owner or a socket, and only enabled faces are served.
func TestEveryFaceOfTheConfigIsInTheTable(t *testing.T) {
	n := &node{cfg: config.Default()}
	owners, sockets, names := map[core.Owner]bool{}, map[string]bool{"control": true}, map[string]bool{}
	for _, e := range n.faceTable() {
		if names[e.name] || owners[e.owner] || e.owner == "" || e.open == nil {
			t.Errorf("entry %s of %s: twice, or incomplete", e.name, e.owner)
		}
		names[e.name], owners[e.owner] = true, true
		for _, s := range e.sockets {
			if sockets[s.Name] {
				t.Errorf("socket %s belongs to two", s.Name)
			}
			sockets[s.Name] = true
		}
	}
	sections := reflect.TypeFor[config.Faces]()
	for i := range sections.NumField() {
		if name := sections.Field(i).Tag.Get("toml"); !names[name] {
			t.Errorf("[face.%s] has no entry", name)
		}
	}
	if len(names) != sections.NumField() {
		t.Errorf("%d entries, %d sections of the config", len(names), sections.NumField())
	}
	n.cfg.Face.CRI.Enabled, n.cfg.Face.Nomad.Enabled, n.cfg.Face.Mesos.Enabled = false, true, false
	if got := n.enabledFaces(); len(got) != 1 || got[0].name != "nomad" {
		t.Errorf("enabled: %v", got)
	}
}
