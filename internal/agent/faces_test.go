package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/obs"
)

// TestEveryFaceOfTheConfigIsInTheTable: each section [face.NAME] has one entry of that
// name, no two entries have an owner or a socket in common, and only what the config
// enables is served.
func TestEveryFaceOfTheConfigIsInTheTable(t *testing.T) {
	n := &node{cfg: config.Default()}
	owners, sockets, names := map[core.Owner]bool{}, map[string]bool{"control": true}, map[string]bool{}
	for _, e := range n.faceTable() {
		if names[e.name] || owners[e.owner] || e.owner == "" || e.open == nil {
			t.Errorf("entry %s of %s: twice, or incomplete", e.name, e.owner)
		}
		names[e.name], owners[e.owner] = true, true
		for _, s := range e.sockets {
			if sockets[s.name] {
				t.Errorf("socket %s belongs to two", s.name)
			}
			sockets[s.name] = true
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

// TestListenOpensTheSocketsOfEnabledFaces: in the table's order, and none for an empty
// address.
func TestListenOpensTheSocketsOfEnabledFaces(t *testing.T) {
	dir := t.TempDir()
	n := &node{cfg: config.Default(), log: slog.New(slog.DiscardHandler), metrics: obs.New(obs.Options{})}
	n.cfg.Agent.State = dir
	n.cfg.Face.CRI.Enabled, n.cfg.Face.Nomad.Enabled, n.cfg.Face.Mesos.Enabled = false, false, true
	n.cfg.Face.Mesos.Socket, n.cfg.Face.Mesos.Listen = filepath.Join(dir, "mesos.sock"), "127.0.0.1:0"
	s, err := n.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	l := s.faces["mesos"]
	if len(s.faces) != 1 || len(l) != 2 || l[0].Addr().Network() != "unix" || l[1].Addr().Network() != "tcp" {
		t.Errorf("listeners: %v", s.faces)
	}
	n.cfg.Face.Mesos.Listen = ""
	s.close()
	if l, err := n.reopen(t.Context(), "mesos"); err != nil || len(l) != 1 {
		t.Errorf("opened again: %v, %v", l, err)
	} else {
		_ = l[0].Close()
	}
}

// dialer is a face without listeners.
type dialer struct {
	served chan int // how many listeners it got
	fail   bool     // whether the first call of Serve fails
}

func (*dialer) Name() string { return "dialer" }

func (d *dialer) Serve(ctx context.Context, listeners ...net.Listener) error {
	d.served <- len(listeners)
	if d.fail {
		d.fail = false
		return errors.New("the manager hung up")
	}
	<-ctx.Done()
	return nil
}

// TestAFaceThatDialsOutIsServedWithoutListeners, and again after it has failed.
func TestAFaceThatDialsOutIsServedWithoutListeners(t *testing.T) {
	n := &node{cfg: config.Default(), log: slog.New(slog.DiscardHandler)}
	f := &dialer{served: make(chan int), fail: true}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.superviseFace(ctx, f, &sockets{})
	}()
	for range 2 {
		if got := <-f.served; got != 0 {
			t.Errorf("%d listeners", got)
		}
	}
	cancel()
	<-ended
}
