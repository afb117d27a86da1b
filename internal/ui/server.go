package ui

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/longshore/longshore/internal/handover"
)

// Options are the parameters of New. Conn and Logger are required, and Token or Certificates.
type Options struct {
	// Conn is a connection to the control API.
	Conn grpc.ClientConnInterface
	// Token opens the page; "" admits every client that the listener admits.
	Token string
	// Certificates means that the listener admits only clients with certificates.
	Certificates bool
	// Hosts are additional host names of the page, besides those of loopback.
	Hosts []string
	// Actions also serves the calls that change something.
	Actions bool
	Logger  *slog.Logger
}

// Server is the handler of the page.
type Server struct {
	o        Options
	api      api
	feed     feed
	sessions sessions
	terms    terminals
	files    http.Handler
	routes   *http.ServeMux
}

// New returns a handler. It calls the control API only while it has clients.
func New(o Options) (*Server, error) {
	switch {
	case o.Conn == nil || o.Logger == nil:
		return nil, errors.New("ui: no connection or no logger")
	case o.Token == "" && !o.Certificates:
		return nil, errors.New("ui: neither a token nor certificates")
	}
	s := &Server{o: o, api: newAPI(gated{conn: o.Conn, readOnly: !o.Actions}), files: http.FileServerFS(assets()), routes: http.NewServeMux()}
	s.feed.api, s.feed.log = s.api, o.Logger
	s.sessions.name = newCookieName()
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /api/feed": s.serveFeed, "GET /api/node": s.node, "GET /api/container": s.container, "GET /api/events": s.events, "GET /api/logs": s.logs,
		"GET /api/images": s.images, "GET /api/networks": s.networks, "GET /api/volumes": s.volumes, "GET /api/disk": s.disk, "GET /api/doctor": s.doctor,
		"GET /api/disk/parts": s.diskParts, "GET /api/top": s.top, "POST /api/action": s.action, "POST /api/exec": s.exec, "POST /api/exec/{id}/input": s.execInput, "POST /api/exec/{id}/size": s.execSize,
		"POST /api/logout": s.logout,
	} {
		s.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				fail(w, err)
			}
		})
	}
	return s, nil
}

// policy is the Content-Security-Policy: the page's own files, and nothing else. No text can become markup or a script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// keyHeader is the request header with the session's key. A page of another origin cannot send it.
const keyHeader = "X-Longshore-Key"

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for k, v := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
	} {
		h.Set(k, v)
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	switch {
	case !s.knownHost(r):
		http.Error(w, "the page has no such host name: open it by the address that it printed, or add the name to ui.hosts", http.StatusMisdirectedRequest)
	case !sameOrigin(r):
		http.Error(w, "the request comes from another page", http.StatusForbidden)
	case !strings.HasPrefix(r.URL.Path, "/api/"):
		s.file(w, r)
	default:
		h.Set("Cache-Control", "no-store")
		if r.Method == http.MethodPost && r.URL.Path == "/api/login" {
			s.login(w, r)
			return
		}
		user, ok := s.user(r)
		if !ok {
			http.Error(w, "no session: log in with the token", http.StatusUnauthorized)
			return
		}
		s.routes.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	}
}

// file serves a built file.
func (s *Server) file(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this file can only be read", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	tag, ok := tags()[cmp.Or(name, "index.html")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-cache") // a browser asks whether its copy is the present one
	w.Header().Set("Etag", tag)
	s.files.ServeHTTP(w, r)
}

// knownHost reports whether a request names the page by an address or name of its own. A name that an attacker's server
// resolves to this machine is not one.
func (s *Server) knownHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(r.Host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if loopback(host) || slices.ContainsFunc(s.o.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
		return true
	}
	// An address cannot be rebound: the browser has connected to it.
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	tcp, ok := local.(*net.TCPAddr)
	addr, err := netip.ParseAddr(host)
	return ok && err == nil && tcp.AddrPort().Addr().Unmap() == addr.Unmap()
}

// sameOrigin reports whether a request comes from the page itself, or from a program that is no browser.
func sameOrigin(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	opens := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/" && r.Method == http.MethodGet
	if site != "" && site != "same-origin" && site != "none" && !opens {
		return false
	}
	origin := r.Header.Get("Origin")
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return origin == "" || strings.EqualFold(origin, scheme+r.Host)
}

// Serve serves the page on a listener of Bound or Config.Secure until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	requests, end := handover.Requests(ctx)
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return requests },
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end(srv)
	})
	err := srv.Serve(l)
	if !stop() {
		<-ended
		return nil
	}
	return err
}

// names returns the names of the built files.
func names() []string {
	list, err := fs.Glob(assets(), "*")
	if err != nil {
		panic(err) // the pattern is valid
	}
	return list
}
