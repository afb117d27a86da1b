package grpcerr_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/face/grpcerr"
)

func TestEveryClassHasItsCode(t *testing.T) {
	for _, tt := range []struct {
		class error
		want  codes.Code
	}{
		{errdefs.ErrUnknown, codes.Unknown},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrAlreadyExists, codes.AlreadyExists},
		{errdefs.ErrPermissionDenied, codes.PermissionDenied},
		{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
		{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
		{errdefs.ErrConflict, codes.FailedPrecondition},
		{errdefs.ErrNotModified, codes.FailedPrecondition},
		{errdefs.ErrAborted, codes.Aborted},
		{errdefs.ErrOutOfRange, codes.OutOfRange},
		{errdefs.ErrNotImplemented, codes.Unimplemented},
		{errdefs.ErrInternal, codes.Internal},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{errdefs.ErrDataLoss, codes.DataLoss},
		{errdefs.ErrUnauthenticated, codes.Unauthenticated},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{errors.New("no class"), codes.Unknown},
		{status.Error(codes.AlreadyExists, "had one"), codes.AlreadyExists},
	} {
		for _, err := range []error{tt.class, fmt.Errorf("start container x: %w", tt.class), fmt.Errorf("start: %w", errors.Join(errors.New("stderr"), tt.class))} {
			got := grpcerr.Status(err, nil)
			if status.Code(got) != tt.want {
				t.Errorf("%v: code %s, want %s", err, status.Code(got), tt.want)
			}
			if _, had := tt.class.(interface{ GRPCStatus() *status.Status }); !had && status.Convert(got).Message() != err.Error() {
				t.Errorf("%v: text became %q", err, status.Convert(got).Message())
			}
		}
	}
	if grpcerr.Status(nil, nil) != nil {
		t.Error("nil became an error")
	}
}

func TestATimeoutOutranksItsCause(t *testing.T) {
	err := fmt.Errorf("exec: %w: %w", errdefs.ErrUnavailable, context.DeadlineExceeded)
	if got := status.Code(grpcerr.Status(err, nil)); got != codes.DeadlineExceeded {
		t.Errorf("code %s", got)
	}
}

func TestTheTextIsConverted(t *testing.T) {
	err := grpcerr.Status(fmt.Errorf("find: %w", errdefs.ErrNotFound), strings.ToUpper)
	if s := status.Convert(err); s.Code() != codes.NotFound || s.Message() != "FIND: NOT FOUND" {
		t.Errorf("got %v", err)
	}
}
