package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/trail"
)

// Who is the operator of a request.
type Who struct {
	// Name tells it, as events have it: "uid 0" of the socket, "certificate NAME" or "token NAME".
	Name  string
	Scope ca.Scope
}

type (
	localKey struct{}
	whoKey   struct{}
	lineKey  struct{}
)

// peerOf returns the process at the other end of a unix socket; the socket's mode has admitted it.
func peerOf(c net.Conn) Who { return Who{Peer(c), ca.ScopeAdmin} }

// Peer is the name of the user at the other end of a unix socket: "uid 0".
func Peer(c net.Conn) (name string) {
	name = "uid unknown"
	u, ok := c.(*net.UnixConn)
	if !ok {
		return name
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return name
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			name = fmt.Sprintf("uid %d", cred.Uid)
		}
	})
	return name
}

// known authenticates requests, and passes only those of operators on.
func (s Server) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := r.Context().Value(localKey{}).(Who)
		if !ok {
			o, err := s.operator(r)
			if err != nil {
				reply(w, nil, err)
				return
			}
			connlimit.Authenticate(r.Context())
			who = Who{o.Kind + " " + o.Name, o.Scope}
			ctx, release, err := s.Operators.Hold(r.Context(), o)
			if err != nil {
				reply(w, nil, err)
				return
			}
			defer release()
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
	})
}

// operator returns the owner of a request's certificate or token.
func (s Server) operator(r *http.Request) (ca.Operator, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return s.Operators.ByCertificate(r.TLS.PeerCertificates)
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ca.Operator{}, fmt.Errorf("a certificate or a token of an operator is required: %w", errdefs.ErrUnauthenticated)
	}
	return s.Operators.ByToken(token)
}

// permitted passes requests on if the operator has the route's scope. A route without a scope
// passes nobody.
func (s Server) permitted(next http.Handler) http.Handler {
	return s.audited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, _ := r.Context().Value(whoKey{}).(Who)
		needs := ca.Scope("none")
		for key, scope := range map[any]ca.Scope{hubv1.ReadScopes: ca.ScopeRead, hubv1.ApplyScopes: ca.ScopeApply, hubv1.AdminScopes: ca.ScopeAdmin} {
			if r.Context().Value(key) != nil {
				needs = scope
			}
		}
		if !who.Scope.Includes(needs) {
			reply(w, nil, fmt.Errorf("%s has the scope %q; this needs %q: %w", who.Name, who.Scope, needs, errdefs.ErrPermissionDenied))
			return
		}
		asked := events.Event{Kind: "operator", Who: who.Name, What: fmt.Sprintf("asked for %s %s", r.Method, r.URL.Path)}
		next.ServeHTTP(w, r.WithContext(events.By(r.Context(), asked)))
	}))
}

// audited writes requests that change something, and those for secret content, to the audit trail.
func (s Server) audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if s.Trail == nil || reads && r.Context().Value(hubv1.AdminScopes) == nil {
			next.ServeHTTP(w, r)
			return
		}
		who, _ := r.Context().Value(whoKey{}).(Who)
		peer := who.Name
		if r.TLS != nil {
			peer += ", " + r.RemoteAddr
		}
		line := s.Trail.Answers(w, trail.Record{Face: "hub", Call: r.Method + " " + r.URL.Path, Peer: peer, Request: r.Header.Get("X-Request-Id")})
		line.Handle(next, r.WithContext(context.WithValue(r.Context(), lineKey{}, line)))
	})
}

// does returns the context of an operator's action, for the log of events with the operator's name.
func does(r *http.Request, format string, args ...any) context.Context {
	who, _ := r.Context().Value(whoKey{}).(Who)
	if line, ok := r.Context().Value(lineKey{}).(*trail.Response); ok {
		line.Detail(fmt.Sprintf(format, args...))
	}
	return events.By(r.Context(), events.Event{Kind: "operator", Who: who.Name, What: fmt.Sprintf(format, args...)})
}

// ListOperators implements hubv1.ServerInterface.
func (s Server) ListOperators(w http.ResponseWriter, _ *http.Request) {
	list := []hubv1.Operator{}
	for _, o := range s.Operators.List() {
		list = append(list, hubv1.Operator{Name: o.Name, Scope: string(o.Scope), Kind: o.Kind, Created: o.Created, By: o.By, Expires: o.Expires})
	}
	reply(w, list, nil)
}

// CreateOperator implements hubv1.ServerInterface.
func (s Server) CreateOperator(w http.ResponseWriter, r *http.Request) {
	var n hubv1.NewOperator
	if err := decode(r.Body, &n); err != nil {
		reply(w, nil, err)
		return
	}
	who, _ := r.Context().Value(whoKey{}).(Who)
	token, certificate, err := s.Operators.Create(does(r, "created the operator %s with the scope %s", n.Name, n.Scope), ca.Operator{Name: n.Name, Scope: ca.Scope(n.Scope), By: who.Name}, n.Days, []byte(n.Csr))
	reply(w, hubv1.Credentials{Name: n.Name, Token: token, Certificate: string(certificate), Roots: string(s.CA.Authority.Roots())}, err)
}

// RemoveOperator implements hubv1.ServerInterface.
func (s Server) RemoveOperator(w http.ResponseWriter, r *http.Request, id string) {
	done(w, s.Operators.Remove(does(r, "removed the operator %s", id), id))
}
