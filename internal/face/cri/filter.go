package cri

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// idLen is the length of a whole core.ID.
const idLen = 64

// matchID reports whether id is the one asked for: by its whole, or by a prefix;
// an empty one asks for all.
func matchID(id core.ID, asked string) bool { return strings.HasPrefix(string(id), asked) }

// stored finds the object with an id, or with a unique prefix of it. Hidden objects are not found.
func stored[T any](kind, id string, get func(core.ID) (*T, error), all func() ([]*T, error), idOf func(*T) core.ID, show func(*T) bool) (*T, error) {
	if id == "" {
		return nil, invalid.Errorf("no %s id", kind)
	}
	o, err := get(core.ID(id))
	if err == nil && !show(o) {
		err = fmt.Errorf("%s %s is not made yet: %w", kind, id, errdefs.ErrNotFound)
	}
	if !errdefs.IsNotFound(err) || !maybePrefix(id) {
		return o, err
	}
	list, lerr := all()
	if lerr != nil {
		return nil, lerr
	}
	list = slices.DeleteFunc(list, func(o *T) bool { return !matchID(idOf(o), id) })
	if len(list) == 1 && show(list[0]) {
		return list[0], nil
	}
	return nil, err
}

// maybePrefix reports whether s could be the beginning of an ID.
func maybePrefix(s string) bool {
	return s != "" && len(s) < idLen && strings.Trim(s, "0123456789abcdef") == ""
}

func matchLabels(labels, selector map[string]string) bool {
	return core.Filter{Labels: selector}.MatchLabels(labels)
}

// shownContainer leaves out containers that are not made yet: one exists for a client once its
// create has answered.
func shownContainer(c *core.Container) bool { return c.State != core.ContainerCreating }

func matchSandbox(f *v1.PodSandboxFilter, sb *core.Sandbox) bool {
	return matchID(sb.ID, f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == sandboxState(sb.State)) &&
		matchLabels(sb.Labels, f.GetLabelSelector())
}

func matchContainer(f *v1.ContainerFilter, c *core.Container) bool {
	return shownContainer(c) && matchID(c.ID, f.GetId()) && matchID(c.Sandbox, f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == containerState(c.State)) &&
		matchLabels(c.Labels, f.GetLabelSelector())
}

// matchStats is for containers that run; the others have no figures.
func matchStats(f *v1.ContainerStatsFilter, c *core.Container) bool {
	running := c.State.Live()
	return running && matchID(c.ID, f.GetId()) && matchID(c.Sandbox, f.GetPodSandboxId()) && matchLabels(c.Labels, f.GetLabelSelector())
}

func matchPodStats(f *v1.PodSandboxStatsFilter, sb *core.Sandbox) bool {
	return sb.State == core.SandboxReady && matchID(sb.ID, f.GetId()) && matchLabels(sb.Labels, f.GetLabelSelector())
}
