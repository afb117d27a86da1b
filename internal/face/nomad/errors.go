package nomad

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/errtext"
)

// errUnknownTask has the exact text of Nomad's own drivers, because callers compare it.
var errUnknownTask = errors.New("task not found for given id") //nolint:gochecknoglobals // an error value

// grpcError gives err a code. There is one for everything but the end of the call
// itself: Unavailable would mean to Nomad that the plugin has died.
func grpcError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unavailable && s.Code() != codes.Canceled {
		return err
	}
	return status.Error(codes.Unknown, errtext.Plain(err.Error()))
}

// startError says whether it helps to start the task again: with false Nomad fails the task, with
// any restart policy.
func startError(err error) error {
	if err == nil {
		return nil
	}
	st, derr := status.New(codes.FailedPrecondition, errtext.Plain(err.Error())).WithDetails(&nomadstructs.RecoverableError{Recoverable: passing(err)})
	if derr != nil {
		return err
	}
	return st.Err()
}

// passing reports whether an error may be temporary: an error of the job is not.
func passing(err error) bool {
	for _, is := range []func(error) bool{
		errdefs.IsInvalidArgument, errdefs.IsNotFound, errdefs.IsUnauthorized, errdefs.IsPermissionDenied, errdefs.IsNotImplemented, errdefs.IsAlreadyExists,
	} {
		if is(err) {
			return false
		}
	}
	var refused *core.StartError // a program of no known format has no class of its own
	return !errors.As(err, &refused) || errdefs.IsResourceExhausted(err)
}
