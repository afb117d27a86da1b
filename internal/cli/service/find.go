package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// Find returns the container of the command line that has exactly this name or ID. A unit is started and stopped while its
// container may be missing: the beginning of another one's ID must not match then.
func Find(ctx context.Context, c *base.Client, name string) (*longshorev1.Container, error) {
	resp, err := c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{Owner: "cli", All: true})
	if err != nil {
		return nil, err
	}
	var found *longshorev1.Container
	for _, e := range resp.GetContainers() {
		switch {
		case e.GetId() == name:
			return e, nil
		case e.GetKey() == name, e.GetName() == name && found == nil:
			found = e
		}
	}
	if found == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("find container %q: not found", name))
	}
	return found, nil
}

// Exactly calls fn with the ID of the container that has exactly this name. Without one it does nothing.
func Exactly(ctx context.Context, c *base.Client, name string, fn func(id string) error) error {
	found, err := Find(ctx, c, name)
	if err == nil {
		err = fn(found.GetId())
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
