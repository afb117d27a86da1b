// Package grpcerr gives errors the gRPC codes of their classes, the same ones on
// every interface of the agent.
//
// Start at Status; Interceptors has it done to every call of a server.
package grpcerr

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/longshore/longshore/internal/enums"
)

type classCode struct {
	class error
	code  codes.Code
}

// table is read from the top: an error of two classes gets the first code. The
// context's own errors come first, because they may be joined with what they made
// fail.
func table() []classCode {
	return []classCode{
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrAlreadyExists, codes.AlreadyExists},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
		{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
		{errdefs.ErrConflict, codes.FailedPrecondition},
		{errdefs.ErrNotModified, codes.FailedPrecondition},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
		{errdefs.ErrNotImplemented, codes.Unimplemented},
		{errdefs.ErrPermissionDenied, codes.PermissionDenied},
		{errdefs.ErrUnauthenticated, codes.Unauthenticated},
		{errdefs.ErrAborted, codes.Aborted},
		{errdefs.ErrOutOfRange, codes.OutOfRange},
		{errdefs.ErrDataLoss, codes.DataLoss},
		{errdefs.ErrInternal, codes.Internal},
		{errdefs.ErrUnknown, codes.Unknown},
	}
}

// Status gives err the code of its class, and its text as text makes it; nil
// leaves the text as it is. An error that has a code already is returned
// unchanged, one of no class is Unknown.
func Status(err error, text func(string) string) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	message := err.Error()
	if text != nil {
		message = text(message)
	}
	for _, t := range table() {
		if errors.Is(err, t.class) {
			return status.Error(t.code, message)
		}
	}
	return status.Error(codes.Unknown, message)
}

// Interceptors pass the error of every call through convert, which gets the
// call's context. They refuse requests with a value of an enum that is not known.
func Interceptors(convert func(context.Context, error) error) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if m, ok := req.(proto.Message); ok {
			if err := enums.Check(m); err != nil {
				return nil, convert(ctx, err)
			}
		}
		resp, err := next(ctx, req)
		return resp, convert(ctx, err)
	}
	stream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return convert(ss.Context(), next(srv, checked{ss}))
	}
	return unary, stream
}

// checked is a stream of which each message is checked.
type checked struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (c checked) RecvMsg(m any) error { return enums.Receive(c.ServerStream.RecvMsg, m) }
