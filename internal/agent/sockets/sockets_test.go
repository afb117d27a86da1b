package sockets

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenOpensTheSocketsOfFaces: in their order, and none for an empty address.
func TestOpenOpensTheSocketsOfFaces(t *testing.T) {
	dir := t.TempDir()
	o := Options{State: dir, Logger: slog.New(slog.DiscardHandler), Faces: map[string][]Socket{
		"mesos": {{Name: "mesos", Address: filepath.Join(dir, "mesos.sock")}, {Name: "mesos-tcp", Address: "127.0.0.1:0"}}, "swarm": nil,
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

// TestSharedSocketsHaveNames opens sockets that groups share: a face tells them apart by their names, since their addresses are those
// of the moment of the bind, and their modes admit the group.
func TestSharedSocketsHaveNames(t *testing.T) {
	dir := t.TempDir()
	o := Options{State: dir, Logger: slog.New(slog.DiscardHandler), Faces: map[string][]Socket{
		"x": {{Name: "full", Address: filepath.Join(dir, "full.sock"), Shared: true}, {Name: "read", Address: filepath.Join(dir, "read.sock"), Shared: true}},
	}}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []string{"full", "read"} {
		if n, ok := s.faces["x"][i].(interface{ SocketName() string }); !ok || n.SocketName() != want {
			t.Errorf("listener %d is not named %s", i, want)
		}
		if info, err := os.Stat(filepath.Join(dir, want+".sock")); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: %v, %v", want, info, err)
		}
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

// serving serves a face until the returned function is called, which waits for the end.
func serving(t *testing.T, s *Sockets, f *dialer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ctx, f)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// TestAFaceThatDialsOutIsServedWithoutListeners, and again after it has failed.
func TestAFaceThatDialsOutIsServedWithoutListeners(t *testing.T) {
	s := &Sockets{o: Options{Logger: slog.New(slog.DiscardHandler)}}
	f := &dialer{served: make(chan int), fail: true}
	stop := serving(t, s, f)
	for range 2 {
		if got := <-f.served; got != 0 {
			t.Errorf("%d listeners", got)
		}
	}
	stop()
}

// opener is a slog.Handler that makes a directory at the first failure to open sockets.
type opener struct {
	slog.Handler
	dir  string
	made bool
}

func (o *opener) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "could not restart a face's listener") && !o.made {
		o.made = true
		return os.Mkdir(o.dir, 0o700)
	}
	return nil
}

func (o *opener) Enabled(context.Context, slog.Level) bool { return true }

// TestAFaceComesBackWithAllItsSockets: while one of them cannot be opened, the face is not served, and the others are
// closed.
func TestAFaceComesBackWithAllItsSockets(t *testing.T) {
	dir := t.TempDir()
	first, later := filepath.Join(dir, "first.sock"), filepath.Join(dir, "later")
	handler := &opener{dir: later}
	s := &Sockets{o: Options{Logger: slog.New(handler), Faces: map[string][]Socket{
		"dialer": {{Name: "first", Address: first}, {Name: "second", Address: filepath.Join(later, "second.sock")}},
	}}}
	if l, err := s.reopen(t.Context(), "dialer"); err == nil || l != nil {
		t.Fatalf("opened %v, %v", l, err)
	}
	if c, err := net.Dial("unix", first); err == nil {
		_ = c.Close()
		t.Error("the first socket is still open")
	}
	f := &dialer{served: make(chan int), fail: true}
	stop := serving(t, s, f)
	if got := []int{<-f.served, <-f.served}; got[0] != 0 || got[1] != 2 {
		t.Errorf("served with %v listeners", got)
	}
	stop()
}
