// Package sockets opens all listening sockets of the agent, those among them that systemd passes, and
// serves faces and metrics on them. Start at Open.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/obs"
)

// Socket is one of a face's sockets.
type Socket struct {
	Name    string // the name under which systemd passes it
	Address string // an absolute path, or host:port for TCP; "" uses only a socket that systemd passes
	// Shared sockets may be used by the group too, "" for root's. Their listeners have a method SocketName.
	Shared bool
	Group  string
}

// Options name the sockets to open.
type Options struct {
	State   string // the directory of the control API's socket
	Control control.Config
	// Faces has the sockets of each face, by its name, in their order.
	Faces   map[string][]Socket
	Metrics obs.MetricsConfig
	// UI is the address of the web page; "" is none.
	UI string
	// Handler serves the metrics.
	Handler http.Handler
	Logger  *slog.Logger
}

// Sockets are all listening sockets of the agent. They are opened before anything serves, so that a
// wrong path or a port in use fails the start.
type Sockets struct {
	Control control.Listeners
	// UI is the listener of the web page, nil without one.
	UI net.Listener

	o       Options
	faces   map[string][]net.Listener // by the face's name; a face that dials out has none
	metrics net.Listener              // nil without metrics
	handler http.Handler
	open    []net.Listener
}

// Close closes all sockets.
func (s *Sockets) Close() {
	s.Control.Close()
	for _, l := range s.open {
		_ = l.Close()
	}
}

// Open opens the sockets. It uses those that systemd passes, by their names: control, and those of
// faces.
func Open(ctx context.Context, o Options) (_ *Sockets, err error) {
	passed, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("agent: sockets from systemd: %w", err)
	}
	passed = passOn(ctx, passed)
	s := &Sockets{o: o, faces: map[string][]net.Listener{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	var given net.Listener
	if l := passed["control"]; len(l) > 0 {
		given = l[0]
	}
	if s.Control, err = control.ListenBeside(ctx, o.State, o.Control, given); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Faces)) { // the first error is always the same
		for _, at := range o.Faces[name] {
			l, err := pick(ctx, passed[at.Name], at)
			if err != nil {
				return nil, err
			}
			s.faces[name] = append(s.faces[name], l...)
			s.open = append(s.open, l...)
		}
	}
	s.metrics, s.handler, err = o.Metrics.Open(ctx, o.Handler)
	if s.metrics != nil {
		s.open = append(s.open, s.metrics)
	}
	if err != nil || o.UI == "" {
		return s, err
	}
	l, err := listen(ctx, Socket{Name: "ui", Address: o.UI})
	if err != nil {
		return nil, fmt.Errorf("listen on ui.listen: %w", err)
	}
	s.UI = l[0]
	s.open = append(s.open, s.UI)
	return s, nil
}

// passOn adds systemd's sockets of the program before to those of this one, and keeps all for the next program.
func passOn(ctx context.Context, passed map[string][]net.Listener) map[string][]net.Listener {
	all := handover.From(ctx).TakeAll(fromSystemd)
	for key, l := range all {
		name, _, _ := strings.Cut(strings.TrimPrefix(key, fromSystemd), " ")
		if passed == nil {
			passed = map[string][]net.Listener{}
		}
		passed[name] = append(passed[name], l)
	}
	for name, list := range passed {
		for i, l := range list {
			handover.From(ctx).Add(fromSystemd+name+" "+strconv.Itoa(i), l)
		}
	}
	return passed
}

// fromSystemd begins the keys of sockets that systemd has passed.
const fromSystemd = "systemd "

// named is a listener that knows its Socket's name. Its address does not tell: a socket is bound under another path and renamed.
type named struct {
	net.Listener
	name string
}

// SocketName returns the Name of the listener's Socket.
func (l named) SocketName() string { return l.name }

// pick returns the listeners of a socket: those of systemd, or a new one.
func pick(ctx context.Context, given []net.Listener, at Socket) (list []net.Listener, err error) {
	if list = given; len(list) == 0 {
		list, err = listen(ctx, at)
	}
	if err != nil || !at.Shared {
		return list, err
	}
	var out []net.Listener
	for _, l := range list {
		out = append(out, named{l, at.Name})
	}
	return out, nil
}

// listen opens a socket, unless it has no address.
func listen(ctx context.Context, at Socket) ([]net.Listener, error) {
	path := at.Address
	if path == "" {
		return nil, nil
	}
	if !filepath.IsAbs(path) {
		l, err := handover.Listen(ctx, at.Name+" "+path, func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(ctx, "tcp", path) })
		return []net.Listener{l}, err
	}
	mode, gid := os.FileMode(0o600), -1
	if at.Shared {
		mode = 0o660
	}
	if at.Group != "" {
		g, err := user.LookupGroup(at.Group)
		if err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, fmt.Errorf("socket %s: group %s has the id %q", path, at.Group, g.Gid)
		}
	}
	l, err := control.ListenUnix(ctx, path, mode, gid)
	return []net.Listener{l}, err
}

// Serve serves a face until ctx ends. When the face fails, Serve logs the error and starts the face
// again after a growing pause, on new sockets at the same addresses. Other faces continue.
func (s *Sockets) Serve(ctx context.Context, f face.Face) {
	pause := firstPause
	listeners := s.faces[f.Name()]
	for {
		err := f.Serve(ctx, listeners...)
		if ctx.Err() != nil {
			return
		}
		s.o.Logger.ErrorContext(ctx, "a face has failed; it will be restarted after a pause", "face", f.Name(), "error", err, "pause", pause)
		for {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			pause = min(2*pause, longestPause)
			if listeners, err = s.reopen(ctx, f.Name()); err == nil {
				break
			}
			s.o.Logger.ErrorContext(ctx, "could not restart a face's listener; will try again after a pause", "face", f.Name(), "error", err, "pause", pause)
		}
	}
}

// The pauses before a failed face starts again; each is twice the one before.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
)

// reopen opens all sockets of a face, or none.
func (s *Sockets) reopen(ctx context.Context, name string) ([]net.Listener, error) {
	var all []net.Listener
	for _, at := range s.o.Faces[name] {
		l, err := pick(ctx, nil, at)
		if err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			return nil, err
		}
		all = append(all, l...)
	}
	return all, nil
}

// ServeMetrics serves the metrics until ctx ends; it returns at once when they have no socket.
func (s *Sockets) ServeMetrics(ctx context.Context) error {
	if s.metrics == nil {
		return nil
	}
	return serveHTTP(ctx, s.metrics, s.handler)
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
