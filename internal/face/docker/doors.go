package docker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/tlsconf"
)

// The names of the listeners in metrics. The full socket and TCP answer all requests, the read socket only those that list and inspect.
const (
	FullSocket = "docker"
	ReadSocket = "docker-read"
	TCPSocket  = "docker-tcp"
)

// maxUnauthenticated bounds the connections by TCP without a request so far. Above it the oldest is closed.
const maxUnauthenticated = 64

// door is a listener with its rules.
type door struct {
	net.Listener
	name string
	tls  *tlsconf.Live // nil for a unix socket
}

// newDoor returns the door of a listener. One of TCP, also of systemd, is refused without the files for TLS.
func newDoor(l net.Listener, c Config, log *slog.Logger) (door, error) {
	d := door{Listener: l, name: ReadSocket}
	if n, ok := l.(interface{ SocketName() string }); ok && n.SocketName() == FullSocket {
		d.name = FullSocket
	}
	if l.Addr().Network() == "unix" {
		return d, nil
	}
	if c.TCP == "" {
		return d, invalid.Errorf("docker face: a listener at %s needs face.docker.tcp and the files of its certificates", l.Addr())
	}
	d.name = TCPSocket
	var err error
	d.tls, err = c.files().Live(func(err error) {
		log.Warn("could not read the changed certificates of face.docker.tcp; the last ones stay in use", "error", err)
	})
	return d, err
}

// files are those of the TCP listener.
func (c Config) files() tlsconf.Files {
	return tlsconf.Files{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA, Prefix: "face.docker.tls_"}
}

// validateTCP returns InvalidArgument for a TCP listener that would accept clients without certificates.
func (c Config) validateTCP() error {
	if c.TCP == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.TCP); err != nil {
		return invalid.Errorf("face.docker.tcp %q: %v", c.TCP, err)
	}
	for _, file := range []struct{ key, path string }{{"tls_cert", c.TLSCert}, {"tls_key", c.TLSKey}, {"tls_client_ca", c.TLSClientCA}} {
		if !path.IsAbs(file.path) {
			return invalid.Errorf("face.docker.tcp needs face.docker.%s as an absolute path, not %q: each client of the API is root here, so it must have a certificate", file.key, file.path)
		}
	}
	return nil
}

// CheckFiles reads the files that c names as the face does, and returns the first error.
func (c Config) CheckFiles() error {
	if c.TCP == "" {
		return nil
	}
	_, err := c.files().Server()
	return err
}

// server returns the parameters of the door's server.
func (d *door) server(f *Face) dockerhttp.Server {
	o := connlimit.Options{Name: d.name, Key: "face.docker.max_connections", Max: f.o.Config.MaxConnections}
	s := dockerhttp.Server{Handler: d.mux(f), Log: f.log}
	if d.tls != nil {
		s.TLS, o.Unauthenticated = d.tls.Config(), maxUnauthenticated
	}
	s.Limit = f.o.Limits.Limit(o)
	return s
}

// mux returns the handler of the door.
func (d *door) mux(f *Face) *dockerhttp.Mux {
	m := &dockerhttp.Mux{
		Versions: versions(),
		Headers:  func(h http.Header) { h.Set("Server", "Docker/"+EngineVersion+" (linux)") },
		Admit:    d.admit,
	}
	m.Around = f.around
	f.routes(m)
	return m
}

// around makes the span of a request. It reports one that changes something, or reads files of a container, to the audit trail.
func (f *Face) around(r *dockerhttp.Request, handle func() error) (err error) {
	ctx, end := obs.HTTPSpan(r.Request, Name, r.Route)
	defer func() { end(err) }()
	if f.o.Audit == nil {
		r.Request = r.WithContext(ctx)
		return handle()
	}
	ctx = caller.With(ctx, caller.Caller{Face: Name, Call: r.Route, Peer: obs.PeerOfHTTP(r.Request), Request: r.Header.Get(obs.RequestHeader)})
	r.Request = r.WithContext(ctx)
	err = handle()
	if changes(r) {
		object := r.FormValue("fromImage")
		for _, name := range []string{"id", "name"} {
			object = cmp.Or(r.Vars[name], object)
		}
		f.o.Audit.Call(ctx, object, err)
	}
	return err
}

// changes reports whether a request changes something, or reads files of a container.
func changes(r *dockerhttp.Request) bool {
	switch last := r.Route[strings.LastIndexByte(r.Route, '/')+1:]; last {
	case "archive", "export":
		return true
	case "wait", "resize":
		return false
	}
	return r.Method != http.MethodGet && r.Method != http.MethodHead
}

// admit refuses requests that a web page has made, and on the read socket those that do more than list and inspect.
func (d *door) admit(r *dockerhttp.Request) error {
	if d.tls != nil {
		connlimit.Authenticate(r.Context())
		if host := hostOf(r.Host); net.ParseIP(host) == nil && !d.tls.HasName(host) {
			return refused(fmt.Sprintf("the certificate of face.docker.tls_cert has no name %q, which the request has as its host", host))
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refused(fmt.Sprintf("a web page of another origin (%.100q) may not use this API", origin))
		}
	}
	if d.name != ReadSocket {
		return nil
	}
	if !readableRoute(r.Route) {
		return refused("this socket answers only requests that list and inspect: use the socket of face.docker.socket")
	}
	r.Request = r.WithContext(context.WithValue(r.Context(), readKey{}, true))
	return nil
}

func refused(text string) error { return errdefs.ErrPermissionDenied.WithMessage(text) }

// hostOf returns the host of a Host header, without the port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		header = host
	}
	return strings.Trim(header, "[]")
}
