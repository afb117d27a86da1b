package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/face/words"
)

// codeOf is one line of the table that turns an error's class into the code that
// kubelet and crictl act on.
type codeOf struct {
	class error
	code  codes.Code
}

// codeTable is read from the top: an error of two classes gets the first code.
func codeTable() []codeOf {
	return []codeOf{
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

// grpcError gives err the code of its class; an error that has a code already
// keeps it, and one of no class is Unknown. The text is what people read in
// `kubectl describe`, and what kubelet joins events by.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, t := range codeTable() {
		if errors.Is(err, t.class) {
			return status.Error(t.code, words.Plain(err.Error()))
		}
	}
	return status.Error(codes.Unknown, words.Plain(err.Error()))
}

func mapUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	return resp, grpcError(err)
}

func mapStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return grpcError(next(srv, ss))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// gone turns NotFound into success, for calls that must succeed on what is not
// there any more.
func gone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
