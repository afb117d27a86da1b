package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/face"
)

// sockets are all listening sockets of the agent. They are opened before anything serves, so that a
// wrong path or a port in use fails the start.
type sockets struct {
	control        control.Listeners
	faces          map[string][]net.Listener // by the face's name; a face that dials out has none
	metrics        net.Listener
	metricsHandler http.Handler
	open           []net.Listener
}

func (s *sockets) close() {
	s.control.Close()
	for _, l := range s.open {
		_ = l.Close()
	}
}

// listen opens the sockets. It uses those that systemd passes, by their names: control, and those
// in the table of faces.
func (n *node) listen(ctx context.Context) (_ *sockets, err error) {
	passed, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("agent: sockets from systemd: %w", err)
	}
	s := &sockets{faces: map[string][]net.Listener{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	var given net.Listener
	if l := passed["control"]; len(l) > 0 {
		given = l[0]
	}
	if s.control, err = control.ListenBeside(ctx, n.cfg.Agent.State, n.cfg.Control, given); err != nil {
		return nil, err
	}
	for _, e := range n.enabledFaces() {
		for _, at := range e.sockets {
			l, err := pick(ctx, passed[at.name], at.address)
			if err != nil {
				return nil, err
			}
			s.faces[e.name] = append(s.faces[e.name], l...)
			s.open = append(s.open, l...)
		}
	}
	s.metrics, s.metricsHandler, err = n.cfg.Metrics.Open(ctx, n.httpHandler())
	if s.metrics != nil {
		s.open = append(s.open, s.metrics)
	}
	return s, err
}

func pick(ctx context.Context, given []net.Listener, path string) ([]net.Listener, error) {
	if len(given) > 0 {
		return given, nil
	}
	if path == "" {
		return nil, nil
	}
	if !filepath.IsAbs(path) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", path)
		return []net.Listener{l}, err
	}
	l, err := control.ListenUnix(ctx, path, 0o600, -1)
	return []net.Listener{l}, err
}

// superviseFace serves a face until ctx ends. When a face fails, superviseFace logs it and starts
// it again after a growing pause, on the same sockets if they still work; the other faces
// continue.
func (n *node) superviseFace(ctx context.Context, f face.Face, s *sockets) {
	pause := 100 * time.Millisecond
	listeners := s.faces[f.Name()]
	for {
		err := f.Serve(ctx, listeners...)
		if ctx.Err() != nil {
			return
		}
		n.log.ErrorContext(ctx, "a face has failed; it will be restarted after a pause", "face", f.Name(), "error", err, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, 30*time.Second)
		if listeners, err = n.reopen(ctx, f.Name()); err != nil {
			n.log.ErrorContext(ctx, "could not restart a face's listener; will try again after a pause", "face", f.Name(), "error", err)
		}
	}
}

func (n *node) reopen(ctx context.Context, name string) ([]net.Listener, error) {
	var all []net.Listener
	for _, e := range n.enabledFaces() {
		if e.name != name {
			continue
		}
		for _, at := range e.sockets {
			l, err := pick(ctx, nil, at.address)
			if err != nil {
				return all, err
			}
			all = append(all, l...)
		}
	}
	return all, nil
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(connlimit.Lasting(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
