package compose

import (
	"context"
	"encoding/json"
	"fmt"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/translate"
)

// joinable is the part of a container's record about the namespaces of other containers.
type joinable struct {
	ID      string
	State   string
	Network struct{ Mode string }
	Shown   struct{ PID, IPC string }
}

func (u *upper) joinable(ctx context.Context, name string) (j joinable, err error) {
	resp, err := u.c.Containers.Inspect(ctx, &longshorev1.InspectRequest{Name: name})
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(resp.GetJson(), &j); err != nil {
		return j, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return j, nil
}

// joins starts the holders of a request's joined namespaces that have ended, because a new container
// needs them. stale means that c, which may be nil, has joined an older container with the name of one.
func (u *upper) joins(ctx context.Context, c *longshorev1.Container, req *longshorev1.CreateRequest) (stale bool, err error) {
	var has joinable
	for _, field := range []struct {
		wants string
		has   *string
	}{{req.GetNetwork(), &has.Network.Mode}, {req.GetPid(), &has.Shown.PID}, {req.GetIpc(), &has.Shown.IPC}} {
		name, ok := translate.JoinedContainer(field.wants)
		if !ok {
			continue
		}
		holder, err := u.joinable(ctx, name)
		if err != nil {
			return false, err
		}
		if c != nil && has.ID == "" {
			if has, err = u.joinable(ctx, c.GetId()); err != nil {
				return false, err
			}
		}
		stale = stale || c != nil && *field.has != translate.JoinedPrefix+holder.ID
		if holder.State == "exited" {
			u.step("Container", name, "Starting")
			if _, err := u.c.Containers.Start(ctx, &longshorev1.StartRequest{Name: holder.ID}); err != nil {
				return false, err
			}
			u.step("Container", name, "Started")
		}
	}
	return stale, nil
}
