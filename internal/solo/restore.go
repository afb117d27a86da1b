package solo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// RequestOf returns the request of the container of a checkpoint. InvalidArgument for a checkpoint of another owner's container.
func RequestOf(m core.CheckpointMeta) (*longshorev1.CreateRequest, error) {
	var rec Record
	if !slices.Contains(owners(), m.Owner) {
		return nil, fmt.Errorf("the checkpoint is of a container of %s, which restores it: %w", m.Owner, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(m.Data, &rec); err != nil {
		return nil, fmt.Errorf("the checkpoint's record: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	req := &longshorev1.CreateRequest{}
	if err := protojson.Unmarshal(rec.Request, req); err != nil {
		return nil, fmt.Errorf("the checkpoint's request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if req.Name = m.Name; rec.Image != "" {
		req.Image = rec.Image
	}
	if m.TCP == core.TCPKeep && req.GetIp() == "" && len(m.Addresses) > 0 && req.GetNetwork() != "host" && req.GetNetwork() != "none" {
		req.Ip = m.Addresses[0] // its connections are of this address
	}
	return req, nil
}

// Restoring is the restore of a checkpoint.
type Restoring struct {
	Verbs core.CheckpointVerbs
	From  core.Imported // nil for the checkpoint of a container that has ended
	TCP   core.TCPMode
}

// Restore creates a container for a checkpoint and continues its processes in it. After an error nothing of the container is left.
func (p *Prepared) Restore(ctx context.Context, r Restoring, img core.Image) (core.Container, error) {
	s, from := p.s, r.From
	if want := from.Meta().Image; want != "" && want != img.ID.String() {
		return core.Container{}, fmt.Errorf("the image %s is another one (%s) than that of the checkpoint (%s): import or pull that one: %w", p.req.GetImage(), img.ID, want, errdefs.ErrFailedPrecondition)
	}
	c, err := p.Create(ctx, img)
	if err != nil {
		return c, err
	}
	if err = from.Give(ctx, c.ID); err == nil {
		err = s.startable(ctx, c)
	}
	if err == nil {
		err = s.startedBy(ctx, c.ID, func() error {
			return r.Verbs.Restore(ctx, c.ID, core.RestoreOptions{TCP: r.TCP, Root: true})
		})
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		a := core.StopRequest{Owner: s.o.Owner, Call: "longshore restore: it failed", At: time.Now()}
		err = errors.Join(err, s.Remove(clean, c, Removal{engine.RemoveOptions{Force: true, Request: a}, true}))
	}
	return c, err
}

// Restore continues the processes of a container that has ended with its checkpoint.
func Restore(ctx context.Context, s *Service, c core.Container, r Restoring) error {
	unlock, err := s.settling.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if c, err = s.own.Container(ctx, c.ID); err != nil {
		return err
	}
	// Its files have changed since the checkpoint, unless it has ended with that.
	cp := c.LastCheckpoint()
	switch {
	case cp == nil || !cp.Kept:
		return fmt.Errorf("restore %s: it has no checkpoint on this node: %w", c.Name(), errdefs.ErrNotFound)
	case c.State != core.ContainerExited:
		return fmt.Errorf("restore %s: it is %s: %w", c.Name(), c.State, errdefs.ErrFailedPrecondition)
	case !cp.End || c.Main.Started.After(cp.At):
		return fmt.Errorf("restore %s: it ran on after its checkpoint, which does not fit its files any more: %w", c.Name(), errdefs.ErrFailedPrecondition)
	}
	if err := s.startable(ctx, c); err != nil {
		return err
	}
	if err := s.renewLocked(ctx, c.ID); err != nil {
		return err
	}
	return s.startedBy(ctx, c.ID, func() error { return r.Verbs.Restore(ctx, c.ID, core.RestoreOptions{TCP: r.TCP}) })
}
