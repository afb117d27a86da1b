package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/solo/translate"
)

// joinable is the part of a container's record about the namespaces of other containers.
type joinable struct {
	ID    string
	State string
	Shown struct{ Network, PID, IPC string }
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

// joins finds the holders of a request's joined namespaces. ended has the names of those that have ended. stale
// means that c, which may be nil, has joined an older container with the name of one.
func (u *upper) joins(ctx context.Context, c *longshorev1.Container, req *longshorev1.CreateRequest) (ended []string, stale bool, err error) {
	var has joinable
	for _, field := range []struct {
		wants string
		has   *string
	}{{req.GetNetwork(), &has.Shown.Network}, {req.GetPid(), &has.Shown.PID}, {req.GetIpc(), &has.Shown.IPC}} {
		name, ok := translate.JoinedContainer(field.wants)
		if !ok {
			continue
		}
		holder, err := u.joinable(ctx, name)
		if err != nil {
			return nil, false, err
		}
		if c != nil && has.ID == "" {
			if has, err = u.joinable(ctx, c.GetId()); err != nil {
				return nil, false, err
			}
		}
		stale = stale || c != nil && *field.has != translate.JoinedPrefix+holder.ID
		if holder.State == "exited" && !slices.Contains(ended, name) {
			ended = append(ended, name)
		}
	}
	return ended, stale, nil
}

// startEnded starts containers, because a new one needs their namespaces: after the services that theirs need.
func (u *upper) startEnded(ctx context.Context, names []string) error {
	for _, name := range names {
		if u.f.noStart {
			return fmt.Errorf("its container %s has ended, and a new container in its namespaces needs it: start it, or omit --no-start", name)
		}
		i := slices.IndexFunc(u.p.Services, func(s composefile.Service) bool { return nameOf(u.name, s, 1) == name })
		if i >= 0 {
			before := u.graph().upTo(u.p.Services[i].Name)
			errs := before.walk(func(name string, failed map[string]error) error { return u.start(ctx, u.service(name), failed, nil) })
			for _, name := range before.order() {
				if errs[name] != nil {
					return u.named("service "+name, errs[name])
				}
			}
			continue
		}
		if _, err := u.c.Containers.Start(ctx, &longshorev1.StartRequest{Name: name}); err != nil {
			return err
		}
	}
	return nil
}
