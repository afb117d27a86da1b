package cri

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/errtext"
	"github.com/longshore/longshore/internal/face/grpcerr"
)

// grpcError gives err the code of its class. People read the text in `kubectl describe`, and
// kubelet groups events by it.
func grpcError(_ context.Context, err error) error { return grpcerr.Status(err, errtext.Plain) }

// gone turns NotFound into success, for calls that must succeed on removed objects.
func gone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
