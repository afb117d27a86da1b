// Package engineapi serves docker's own command line, in place of a Swarm's managers: the part of
// the Engine API that `docker node|service|stack|secret|config|swarm|info` call, on a socket for
// its owner alone. It refuses settings that a hub does not serve by their names, and stores nothing
// of such a request.
//
// translate reads requests, view makes answers, and fleet changes declarations. Start at
// Server.Serve.
package engineapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/common"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/trail"
)

// The supported versions of the Engine API. Clients of others get an error.
const (
	MinVersion = "1.41"
	MaxVersion = "1.56"
)

// Records are the hub's records: an inventory.
type Records interface {
	fleet.Records
	Nodes() []*swarmv1.Node
	Node(id string) (n *swarmv1.Node, record, seen int64)
	Tasks() map[string]inventory.Task
	Task(id string) (inventory.Task, bool)
}

// Trust is the authority that lets nodes in.
type Trust interface {
	Token() string
	RotateToken(ctx context.Context) (string, error)
	Roots() []byte
	Rotating() bool
	RotateRoot(ctx context.Context) error
}

// Nodes changes nodes. fn may be called several times.
type Nodes interface {
	Change(ctx context.Context, id string, fn func(n *swarmv1.Node) error) error
	Remove(ctx context.Context, id string) error
}

// Output is the output of tasks as it comes.
type Output struct {
	Messages <-chan *swarmv1.LogMessage
	Done     <-chan struct{} // closed when all has been sent
	// Missing returns the nodes with missing output.
	Missing func() []string
	Close   func()
}

// Hub is a hub of the fleet.
type Hub struct {
	ID, Address string
	Leads       bool
}

// Server answers docker's command line.
type Server struct {
	Records Records
	// Hubs returns the hubs of the fleet, this one first; nil is this one alone, which leads.
	Hubs func() []Hub
	// Pending returns the tasks that no node takes; nil is none.
	Pending func() []inventory.Task
	// Notice returns why answers may be out of date, or ""; nil is never.
	Notice func() string
	Trust  Trust
	Nodes  Nodes
	// Output asks the nodes for the output of tasks.
	Output func(*swarmv1.LogSelector, *swarmv1.LogSubscriptionOptions) Output
	// Peer returns the name of the user at the other end of a connection.
	Peer func(net.Conn) string
	// Self is the hub as it shows itself.
	Self Self
	// Trail gets a line for each request that changes something; nil is none.
	Trail *trail.Log
	Log   *slog.Logger
}

// Self is a hub's description of itself.
type Self struct {
	Cluster, Hub    string // ids
	Address         string // for nodes
	Hostname        string
	Version         string
	Heartbeat       time.Duration
	CertificateLife time.Duration
	TaskHistory     int64 // how many tasks that have ended are kept of each place
}

// Serve answers at a listener until ctx ends.
func (s Server) Serve(ctx context.Context, l net.Listener) error {
	err := dockerhttp.Serve(ctx, l, dockerhttp.Server{
		Handler: s.Handler(), Log: s.Log,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, s.Peer(c))
		},
	})
	if ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("serve docker's command line: %w", err)
}

type peerKey struct{}

// doing returns a request with the operator's name for the log of events.
func doing(r *http.Request) *http.Request {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return r
	}
	peer, _ := r.Context().Value(peerKey{}).(string)
	return r.WithContext(events.By(r.Context(), events.Event{Kind: "operator", Who: peer, What: fmt.Sprintf("called %s %s of docker's API", r.Method, r.URL.Path)}))
}

// maxBody is the size of a request's body.
const maxBody = 4 << 20

// answer is the answer to a request.
type answer struct {
	code int
	body any // nil for none
}

func ok(body any) (answer, error) { return answer{http.StatusOK, body}, nil }

// routes are the requests that are answered.
type routes struct {
	*http.ServeMux
	patterns []string
}

// stream answers requests of a pattern by a function that writes the answer itself.
func (m *routes) stream(pattern string, fn http.HandlerFunc) {
	m.patterns = append(m.patterns, pattern)
	m.HandleFunc(pattern, fn)
}

// handle answers requests of a pattern by a function.
func (m *routes) handle(pattern string, fn func(r *http.Request) (answer, error)) {
	m.stream(pattern, func(w http.ResponseWriter, r *http.Request) {
		a, err := fn(r)
		if err != nil {
			refuse(w, err)
			return
		}
		write(w, a)
	})
}

func write(w http.ResponseWriter, a answer) {
	_ = dockerhttp.Reply(w, a.code, a.body) // the client may be gone
}

func refuse(w http.ResponseWriter, err error) {
	write(w, answer{status(err), common.ErrorResponse{Message: dockerhttp.Text(err)}})
}

// status returns the status of an error. Unlike a node's Docker, a hub tells an object in the wrong state from a name in use.
func status(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errdefs.IsFailedPrecondition(err):
		return http.StatusPreconditionFailed
	default:
		return dockerhttp.Status(err)
	}
}

func (s Server) routes() *routes {
	m := &routes{ServeMux: http.NewServeMux()}
	s.system(m)
	s.swarm(m)
	s.nodes(m)
	s.services(m)
	s.tasks(m)
	s.files(m)
	s.networks(m)
	return m
}

// Handler answers requests, with and without the version that they are of.
func (s Server) Handler() http.Handler {
	mux := s.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Api-Version", MaxVersion)
		h.Set("Docker-Experimental", "false")
		h.Set("Ostype", "linux")
		h.Set("Server", "Longshore-Hub/"+s.Self.Version+" (linux)")
		if text := s.notice(); text != "" {
			h.Set("Warning", fmt.Sprintf("110 longshore-hub %q", text))
		}
		_, path, err := versions().Cut(r.URL.Path)
		if err != nil {
			refuse(w, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		r.URL.Path, r.URL.RawPath = path, ""
		if s.Trail == nil || r.Method == http.MethodGet || r.Method == http.MethodHead {
			mux.ServeHTTP(w, doing(r))
			return
		}
		peer, _ := r.Context().Value(peerKey{}).(string)
		s.Trail.Answers(w, trail.Record{Face: "hub-docker", Call: r.Method + " " + r.URL.Path, Peer: peer}).Handle(mux, doing(r))
	})
}

// notice returns why answers may be out of date, or "".
func (s Server) notice() string {
	if s.Notice == nil {
		return ""
	}
	return s.Notice()
}

func versions() dockerhttp.Range {
	return dockerhttp.Range{Min: dockerhttp.MustParse(MinVersion), Max: dockerhttp.MustParse(MaxVersion)}
}

// notHere is the error of a function that a hub lacks.
func notHere(format string, args ...any) error {
	return errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf(format, args...))
}

// sequence is the version of an object that a request changes.
func sequence(r *http.Request) (int64, error) {
	text := r.URL.Query().Get("version")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, invalid.Errorf("invalid version %.40q: it is the Version.Index of the object that is changed", text)
	}
	return n, nil
}

// boolean is a value of a query as Docker reads it.
func boolean(r *http.Request, key string) bool { return dockerhttp.Bool(r.URL.Query().Get(key)) }

// named finds objects by id or name.
type named[T any] struct {
	id, name string
	v        T
	rev      int64
}

// find finds an object by its id, its name, or the beginning of its id. Of several of one name it
// is the newest.
func find[T any](kind, ref string, all []named[T]) (named[T], error) {
	var best, first named[T]
	matches := 0
	for _, o := range all {
		switch {
		case o.id == ref:
			return o, nil
		case o.name == ref && ref != "" && o.rev > best.rev:
			best = o
		case ref != "" && strings.HasPrefix(o.id, ref):
			first, matches = o, matches+1
		}
	}
	switch {
	case best.id != "":
		return best, nil
	case matches == 1:
		return first, nil
	case matches > 1:
		return best, invalid.Errorf("%s %.100s is ambiguous (%d matches found)", kind, ref, matches)
	}
	return best, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %.100s not found", kind, ref))
}
