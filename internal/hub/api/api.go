// Package api is the hub's API for operators: JSON over HTTP, as api/hub/v1/openapi.yaml describes
// it, on a socket for its owner alone, and over TCP for operators with a certificate or a token.
//
// Values of secrets are never in an answer. Start at Server.Serve.
package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/session"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/trail"
)

// Server answers operators.
type Server struct {
	Events    events.Log
	Metrics   http.Handler
	CA        *ca.Service
	Operators *ca.Operators
	Inventory *inventory.Inventory
	Pending   func() []inventory.Task // the tasks that no node takes; nil is none
	// Contact returns the time of the last contact with etcd, and true while it cannot be reached. nil
	// means that it always can.
	Contact    func() (at time.Time, lost bool)
	Broker     *session.Broker
	Dispatcher *session.Dispatcher
	Log        *slog.Logger
	// Trail gets a line for each request that changes something; nil is none.
	Trail *trail.Log
	// Backup writes all records.
	Backup func(ctx context.Context, w io.Writer) error
}

var _ hubv1.ServerInterface = Server{}

// The limits of a request that has no answer yet.
const (
	headerTimeout = 10 * time.Second
	maxHeaders    = 64 << 10
)

// Serve answers at a listener until ctx ends: to all clients of a unix socket, and otherwise only
// to operators with a certificate or a token.
func (s Server) Serve(ctx context.Context, l net.Listener) error {
	_, local := l.Addr().(*net.UnixAddr)
	if !local {
		l = tls.NewListener(l, s.Operators.TLS())
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaders,
		BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if local {
				return context.WithValue(ctx, localKey{}, peerOf(c))
			}
			return connlimit.ConnContext(ctx, c)
		},
	}
	if !local {
		server.ConnState = func(c net.Conn, state http.ConnState) { connlimit.Busy(c, state == http.StateActive) }
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // a connection has one request at a time
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close()
	}()
	err := server.Serve(connlimit.Lasting(l))
	if ctx.Err() != nil {
		<-stopped
		return context.Cause(ctx)
	}
	return fmt.Errorf("serve operators: %w", err)
}

// handler authenticates a client before it reads the request, and authorizes it before it runs the
// request.
func (s Server) handler() http.Handler {
	routes := hubv1.HandlerWithOptions(s, hubv1.StdHTTPServerOptions{
		Middlewares: []hubv1.MiddlewareFunc{s.permitted},
		ErrorHandlerFunc: func(w http.ResponseWriter, _ *http.Request, err error) {
			reply(w, nil, invalid.Errorf("%w", err))
		},
	})
	return s.known(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := s.notice(); text != "" {
			w.Header().Set(NoticeHeader, text)
		}
		r.Body = http.MaxBytesReader(w, r.Body, fleet.MaxBytes)
		routes.ServeHTTP(w, r)
	}))
}

// NoticeHeader is the header of answers that may be out of date. Its value says since when, and why.
const NoticeHeader = "Longshore-Notice"

// notice returns the value of NoticeHeader, or "".
func (s Server) notice() string {
	if s.Contact == nil {
		return ""
	}
	return Notice(s.Contact())
}

// Notice returns the text that tells people of records that may be out of date, or "".
func Notice(at time.Time, lost bool) string {
	if !lost {
		return ""
	}
	return fmt.Sprintf("as of %s, etcd cannot be reached", at.UTC().Format(time.RFC3339))
}

// reply writes an answer, or why there is none.
func reply(w http.ResponseWriter, answer any, err error) {
	code := http.StatusOK
	if err != nil {
		code, answer = status(err), hubv1.Failure{Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// done answers a request without a result.
func done(w http.ResponseWriter, err error) { reply(w, struct{}{}, err) }

// show answers with a message, or that there is none.
func show(w http.ResponseWriter, m proto.Message, err error) {
	if err != nil {
		reply(w, nil, err)
		return
	}
	data, err := protojson.Marshal(m)
	reply(w, json.RawMessage(data), err)
}

func status(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errdefs.IsInvalidArgument(err):
		return http.StatusBadRequest
	case errdefs.IsUnauthorized(err):
		return http.StatusUnauthorized
	case errdefs.IsPermissionDenied(err):
		return http.StatusForbidden
	case errdefs.IsNotFound(err):
		return http.StatusNotFound
	case errdefs.IsAborted(err), errdefs.IsFailedPrecondition(err), errdefs.IsAlreadyExists(err):
		return http.StatusConflict
	case errdefs.IsUnavailable(err), errdefs.IsResourceExhausted(err):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// decode reads a body, which has one value and nothing that is not known.
func decode(r io.Reader, into any) error {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid.Errorf("the request cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid.Errorf("the request has more than one value")
	}
	return nil
}

// GetDescription implements hubv1.ServerInterface.
func (s Server) GetDescription(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(hubv1.Description)
}

// GetToken implements hubv1.ServerInterface.
func (s Server) GetToken(w http.ResponseWriter, _ *http.Request) {
	reply(w, hubv1.Token{Worker: s.CA.Authority.Token()}, nil)
}

// RotateToken implements hubv1.ServerInterface.
func (s Server) RotateToken(w http.ResponseWriter, r *http.Request) {
	token, err := s.CA.Authority.RotateToken(does(r, "made another join token"))
	reply(w, hubv1.Token{Worker: token}, err)
}

// GetAuthority implements hubv1.ServerInterface.
func (s Server) GetAuthority(w http.ResponseWriter, _ *http.Request) {
	a := s.CA.Authority
	answer := hubv1.Authority{Cluster: a.Cluster, Root: string(a.Roots()), Digest: a.Digest(), Rotating: a.Rotating()}
	if answer.Rotating {
		for _, n := range s.CA.Missing() {
			answer.Missing = append(answer.Missing, n.GetId())
		}
	}
	reply(w, answer, nil)
}

// RotateAuthority implements hubv1.ServerInterface.
func (s Server) RotateAuthority(w http.ResponseWriter, r *http.Request) {
	done(w, s.CA.Authority.RotateRoot(does(r, "started the root rotation")))
}

// FinishAuthority implements hubv1.ServerInterface.
func (s Server) FinishAuthority(w http.ResponseWriter, r *http.Request) {
	done(w, s.CA.Authority.FinishRotation(does(r, "finished the root rotation without the missing nodes")))
}
