package sockets

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
)

// TestOpenOpensTheSocketsOfFaces: in their order, and none for an empty address.
func TestOpenOpensTheSocketsOfFaces(t *testing.T) {
	dir := t.TempDir()
	o := Options{State: dir, Logger: slog.New(slog.DiscardHandler), Faces: map[string][]Socket{
		"mesos": {{"mesos", filepath.Join(dir, "mesos.sock")}, {"mesos-tcp", "127.0.0.1:0"}}, "swarm": nil,
	}}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := s.faces["mesos"]
	if len(s.faces) != 1 || len(l) != 2 || l[0].Addr().Network() != "unix" || l[1].Addr().Network() != "tcp" {
		t.Errorf("listeners: %v", s.faces)
	}
	s.o.Faces["mesos"][1].Address = ""
	s.Close()
	if l, err := s.reopen(t.Context(), "mesos"); err != nil || len(l) != 1 {
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
	s := &Sockets{o: Options{Logger: slog.New(slog.DiscardHandler)}}
	f := &dialer{served: make(chan int), fail: true}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ctx, f)
	}()
	for range 2 {
		if got := <-f.served; got != 0 {
			t.Errorf("%d listeners", got)
		}
	}
	cancel()
	<-ended
}
