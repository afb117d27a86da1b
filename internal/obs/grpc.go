package obs

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// GRPC observes the calls of one face: it counts them, logs those that fail through our own
// fault, and turns a handler's panic into an internal error, so that it harms neither the agent
// nor another face.
type GRPC struct {
	Face    string
	Metrics Calls        // nil counts nothing
	Logger  *slog.Logger // required
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
	defer g.observe(ctx, op, time.Now(), &err)
	return next(srv, stream{ss, ctx})
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
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }
