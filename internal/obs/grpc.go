package obs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/caller"
)

// GRPC observes the calls of one face: it counts them, logs those that fail through our own
// fault, and turns a handler's panic into an internal error, so that it harms neither the agent
// nor another face.
type GRPC struct {
	Face    string
	Metrics Calls        // nil counts nothing
	Logger  *slog.Logger // required
	// Audit gets the calls that Changes reports. It may be nil.
	Audit   caller.Audit
	Changes func(op string) bool
	// Client describes the client of a call for Audit. nil describes its process or its address.
	Client func(context.Context) string
}

// Calls counts the calls of faces; *Metrics does.
type Calls interface {
	// Request counts one call. Op and code must come from closed sets.
	Request(face, op, code string, took time.Duration)
	// Panic counts a recovered panic of a face's handler.
	Panic(face string)
}

// Unary is the interceptor for calls with one answer.
func (g GRPC) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	op := path.Base(info.FullMethod)
	ctx = WithAttrs(ctx, slog.String("op", op))
	if c := connection(ctx); c != nil {
		c.Begin()
		defer c.End()
	}
	if g.Audit != nil {
		ctx = caller.With(ctx, caller.Caller{Face: g.Face, Call: op, Peer: g.client(ctx), Request: requestOf(ctx)})
		defer func() { g.audit(ctx, op, req, err) }()
	}
	ctx, end := g.span(ctx, op)
	defer func() { end(err) }()
	defer g.observe(ctx, op, time.Now(), &err)
	return next(ctx, req)
}

// Stream is the interceptor for calls that stream.
func (g GRPC) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	op := path.Base(info.FullMethod)
	ctx := WithAttrs(ss.Context(), slog.String("op", op))
	if c := connection(ctx); c != nil {
		c.Begin()
		defer c.End()
	}
	s := &stream{ServerStream: ss, ctx: ctx}
	if g.Audit != nil {
		s.ctx = caller.With(ctx, caller.Caller{Face: g.Face, Call: op, Peer: g.client(ctx), Request: requestOf(ctx)})
		s.keep = g.Changes(op)
		defer func() { g.audit(s.ctx, op, s.first, err) }()
	}
	var end func(error)
	s.ctx, end = g.span(s.ctx, op)
	defer func() { end(err) }()
	defer g.observe(ctx, op, time.Now(), &err)
	return next(srv, s)
}

func (g GRPC) client(ctx context.Context) string {
	if g.Client != nil {
		return g.Client(ctx)
	}
	return peerOf(ctx)
}

// audit reports a call that changes something, if no verb of the engine has reported it.
func (g GRPC) audit(ctx context.Context, op string, req any, err error) {
	if !g.Changes(op) {
		return
	}
	if s, ok := status.FromError(err); ok && err != nil {
		err = errors.New(s.Message())
	}
	g.Audit.Call(ctx, req, err)
}

// Connection is implemented by the remote address of some connections: it gets the connection's
// calls in progress. See package connlimit.
type Connection interface {
	Begin()
	End()
}

func connection(ctx context.Context) Connection {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	c, _ := p.Addr.(Connection)
	return c
}

// observe must be deferred, because only then can it recover a panic.
func (g GRPC) observe(ctx context.Context, op string, began time.Time, err *error) {
	calls := g.Metrics
	if calls == nil {
		calls = (*Metrics)(nil)
	}
	if p := recover(); p != nil {
		calls.Panic(g.Face)
		g.Logger.LogAttrs(ctx, slog.LevelError, "handler panicked",
			slog.String("face", g.Face), slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
		*err = status.Errorf(codes.Internal, "%s: internal error (a panic, see the agent's log)", op)
	}
	code := status.Code(*err)
	calls.Request(g.Face, op, code.String(), time.Since(began))
	if *err != nil {
		level := slog.LevelDebug
		if code == codes.Internal || code == codes.DataLoss || code == codes.Unknown {
			level = slog.LevelWarn
		}
		g.Logger.LogAttrs(ctx, level, "call failed",
			slog.String("face", g.Face), slog.String("code", code.String()), slog.String("error", (*err).Error()))
	}
}

type stream struct {
	grpc.ServerStream
	ctx   context.Context
	keep  bool // the first message
	first any
}

func (s *stream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream. One goroutine receives.
func (s *stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if s.keep && err == nil {
		s.first, s.keep = m, false
	}
	return err
}
