package cli

import (
	"context"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// eventObjects has the containers for filters by their images and labels, which events do not have. It keeps removed ones.
type eventObjects struct {
	client     *base.Client
	containers map[string]*longshorev1.Container
}

// creatingEvent is the kind of a container's first event. Lists may have the container only after it.
const creatingEvent = "container.creating"

func newEventObjects(ctx context.Context, c *base.Client) (*eventObjects, error) {
	o := &eventObjects{c, map[string]*longshorev1.Container{}}
	return o, o.read(ctx)
}

// read adds the containers that exist now.
func (o *eventObjects) read(ctx context.Context) error {
	resp, err := o.client.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		return err
	}
	for _, c := range resp.GetContainers() {
		o.containers[c.GetId()] = c
	}
	return nil
}

// fit reports whether an event matches the filters image and label. An event of a container that was removed before it was
// read matches neither.
func (o *eventObjects) fit(ctx context.Context, e *longshorev1.Event, f present.Filters) (bool, error) {
	if e.GetContainer() == "" {
		isImage := strings.HasPrefix(e.GetKind(), "image.")
		return isImage && len(f["label"]) == 0 && f.Any("image", func(v string) bool { return present.Image(v, e.GetNote(), e.GetKey()) }), nil
	}
	c, known := o.containers[e.GetContainer()]
	if !known {
		if err := o.read(ctx); err != nil {
			return false, err
		}
		if c = o.containers[e.GetContainer()]; c == nil && e.GetKind() != creatingEvent {
			o.containers[e.GetContainer()] = nil // a log may have thousands of events of removed containers
		}
	}
	if c == nil {
		return false, nil
	}
	return f.Labels(c.GetLabels()) && f.Any("image", func(v string) bool { return present.Image(v, c.GetImageId(), c.GetImage()) }), nil
}
