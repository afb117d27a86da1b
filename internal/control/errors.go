package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// class pairs an error class with the code it becomes.
type class struct {
	err  error
	code codes.Code
}

// classes is asked in order: the context's own errors come first, because they
// may be joined with what they made fail.
func classes() []class {
	return []class{
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrAlreadyExists, codes.AlreadyExists},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
		{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
		{errdefs.ErrConflict, codes.FailedPrecondition},
		{errdefs.ErrPermissionDenied, codes.PermissionDenied},
		{errdefs.ErrUnauthenticated, codes.Unauthenticated},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
		{errdefs.ErrOutOfRange, codes.OutOfRange},
		{errdefs.ErrAborted, codes.Aborted},
		{errdefs.ErrNotImplemented, codes.Unimplemented},
		{errdefs.ErrDataLoss, codes.DataLoss},
		{errdefs.ErrInternal, codes.Internal},
	}
}

// toStatus gives an error the code of its class; one that has a code already
// keeps it.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// One that wraps a status has a text of its own, which counts.
	if has, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return has.GRPCStatus().Err()
	}
	for _, c := range classes() {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Unknown, err.Error())
}

func statusUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	return resp, toStatus(err)
}

func statusStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return toStatus(next(srv, ss))
}

// invalid is an InvalidArgument error.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
